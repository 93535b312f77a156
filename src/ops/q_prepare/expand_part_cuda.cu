// The expansion (expand_cuda.cu) for a rank that has a part of the heads and all index heads: there are multiprocessors
// enough for an index head to have a block of its own beside the two of each head. K is cut where ops/linear would cut
// it for so few rows, in the same order, so the bits are the linear's and q_prepare's one after the other. A kernel of
// its own: with both forms in one the kernel of all heads has more instructions.
#include "device/cluster.cuh"
#include "ops/q_prepare/expand.cuh"

namespace dsv4::q_prepare {

namespace {

constexpr int kThreads = tile_linear::kThreads, kWarps = tile_linear::kWarps;
constexpr int kTiles = kHead / 2 / 16, kIndexTiles = kIndexHead / 16;      // row tiles of a block
constexpr int kRingBytes = tile_linear::kSlots * tile_linear::kSlotBytes;  // of a warp
constexpr int kTile = static_cast<int>(TileBytes(kFormat));
static_assert(kTiles == kWarps && kIndexTiles <= kWarps);

// kCut: K is cut into segments, a warp multiplies one of them with some row tiles; else all of K with its own ones.
template <bool kCut>
struct Warps {
  static constexpr int kLogSegments = kCut ? 3 : 0, kSegments = 1 << kLogSegments, kStep = kWarps / kSegments;
  // Tiles of a copy: segments are short.
  static constexpr int kChunk = kCut ? 2 : 4, kSlotBytes = kChunk * kTile, kSlots = kRingBytes / kSlotBytes;
};
constexpr int kPartialStride = tile_linear::Exchange::Stride(kTiles);  // of a segment's sums of a token

// What lies in a block's dynamic memory: rings, the tokens as fragments, segments' sums, [segment][token][row]; the
// compressors' use the same.
constexpr size_t kRings = static_cast<size_t>(kWarps) * kRingBytes;

// Rows 4 `quad` .. + 3 of a block, from what the segments have of them; a token's, of room for kTokens.
template <int kTokens>
__device__ __forceinline__ void AddSegments(const float* partials, int quad, float factor, float* rows) {
  const float4 sum = tile_linear::TreeSum(reinterpret_cast<const float4*>(partials) + quad,
                                          kTokens * kPartialStride / 4, Warps<true>::kSegments);
  reinterpret_cast<float4*>(rows)[quad] = make_float4(sum.x * factor, sum.y * factor, sum.z * factor, sum.w * factor);
}

// All of an index head, the one with this number of all tokens', by a warp.
__device__ __forceinline__ void FinishIndexHead(const Params& a, const float2* angles, const float* rows, int number,
                                                int lane) {
  Head<kIndexHead / 64> q;
  q.Load(rows, kIndexHead, lane);
  PrepareIndexHead(a, angles, kIndexHead, a.pairs, lane, q);
  q.Store(a.index_q + number * kIndexHead, kIndexHead, lane);
}

// A block's half of a head, by a warp.
__device__ __forceinline__ void FinishHead(const Params& a, const float2* angles, const float* rows, int number,
                                           int half, int lane) {
  Head<kHead / 64> q;
  q.Load(rows, kHead, lane);
  q.Norm(kHead, a.eps);
  q.Rotate(angles, kHead, a.pairs, lane);
  float* to = a.q + number * kHead + 2 * lane;
#pragma unroll
  for (int j = 0; j < kHead / 64; ++j) {
    if (j / (kHead / 128) == half) *reinterpret_cast<float2*>(to + 64 * j) = q.x[j];
  }
}

// What a block is for. Of several tokens compressors take longest where rows end among them, in most steps: then the
// blocks beside the heads' come first. Heads begin at an even block, for two are a cluster.
template <int kTokens>
struct Place {
  int other;   // task beside the heads'; negative: none
  bool alone;  // an index head
  int of_heads, index_head;
  __device__ __forceinline__ explicit Place(const Params& a) {
    const int block = static_cast<int>(blockIdx.x), head_blocks = 2 * a.heads;
    if constexpr (kTokens == 1) {
      other = block - head_blocks - static_cast<int>(a.num_index);
      alone = block >= head_blocks;
      of_heads = block, index_head = block - head_blocks;
    } else {
      const int num_index = a.num_index > 0 ? a.index_heads : 0,
                others = static_cast<int>(gridDim.x) - head_blocks - num_index;
      other = block < others ? block : -1;
      index_head = block - others, of_heads = index_head - num_index;
      alone = of_heads < 0;
    }
  }
};

// kTokens: room, at least as much as there are tokens.
template <bool kCut, int kTokens>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    ExpandPartKernel(const __grid_constant__ ExpandParams a) {
  using W = Warps<kCut>;
  constexpr int kSlots = W::kSlots, kSlotBytes = W::kSlotBytes, kChunk = W::kChunk;
  using Chunks = tile_linear::WarpChunks<kFormat, kTokens, kChunk, false, kSlots, kSlotBytes>;
  using Products = typename Chunks::Products;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t full[kWarps * kSlots];
  __shared__ gpu::ClusterBarrier at_rows;
  __shared__ __align__(16) float heads[kTokens][kHead];
  __shared__ __align__(16) float index_heads[kTokens][kIndexHead];
  __shared__ float2 angles[kTokens][kMaxPairs];
  __shared__ float row_scales[kTokens];
  AllowNext();
  const tile_linear::Params& p = a.linear;
  const Params& prepare = a.prepare;
  const int num_tokens = kTokens == 1 ? 1 : p.num_tokens;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int warp = __shfl_sync(0xFFFFFFFFu, thread / 32, 0);
  const int token = kTokens == 1 ? 0 : warp;  // that the warp prepares, if there is one
  const bool has_token = kTokens == 1 ? warp == 0 : warp < num_tokens;
  const Place<kTokens> place(prepare);
  if (place.other >= 0) {
    OtherTask<kTokens == 1>(prepare, place.other, has_token, token, lane, shared);
    return;
  }

  const bool alone = place.alone;
  const int number = alone ? place.index_head : place.of_heads / 2, half = place.of_heads % 2;
  if (thread == 0 && !alone) {
    at_rows.Init(1);
    BarrierInitFence();
    at_rows.Expect(static_cast<uint32_t>(num_tokens * kHead * 2));
  }
  // By way of a shuffle, so that loops do not compute it again.
  const uint32_t base = __shfl_sync(0xFFFFFFFFu, SharedAddress(shared), 0),
                 ready = __shfl_sync(0xFFFFFFFFu, SharedAddress(full), 0);
  Chunks chunks(base, ready, warp);
  if (!alone) ClusterArriveRelaxed();  // "I run"

  // The warp's tasks: its columns of some row tiles.
  const int segment = warp % W::kSegments, first_task = warp / W::kSegments;
  const int first_tile = p.tile_cols * segment >> W::kLogSegments;
  const int count = (p.tile_cols * (segment + 1) >> W::kLogSegments) - first_tile;
  const int num_chunks = (count + kChunk - 1) / kChunk;
  const int row_tiles = alone ? kIndexTiles : kTiles, first_row_tile = row_tiles * (alone ? number : place.of_heads);
  const uint8_t* const matrix = p.matrices[alone ? 1 : 0].codes;
  const auto codes = [&](int task) {
    return matrix + (static_cast<int64_t>(first_row_tile + task) * p.tile_cols + first_tile) * kTile;
  };
  int asked_task = first_task, asked = 0;
  const uint8_t* from = codes(first_task);
  const auto ask = [&](uint32_t slot, uint32_t barrier) {
    if (asked_task >= row_tiles) return;
    const uint32_t bytes = static_cast<uint32_t>(min(kChunk, count - asked * kChunk)) * static_cast<uint32_t>(kTile);
    if (ElectLane()) {
      BarrierExpect(barrier, bytes);
      BulkLoad(slot, from, bytes, barrier, p.policy);
    }
    from += bytes;
    if (++asked < num_chunks) return;
    asked = 0;
    asked_task += W::kStep;
    if (asked_task < row_tiles) from = codes(asked_task);
  };
  chunks.Fill(ask);
  if (thread < (p.cols + 31) / 32) asm volatile("prefetch.global.L2 [%0];" ::"l"(p.norm + 32 * thread));
  // The first chunk is decoded before the tokens are there.
  Products products(static_cast<uint32_t>(lane));
  uint32_t early[kChunk][4][4];
  chunks.Begin(count);
  if (first_task < row_tiles) chunks.DecodeFirst(products, early, ask);
  if (!alone) ClusterWait();
  WaitForPrevious();

  uint8_t* const inputs = shared + kRings;
  StageQueries<kTokens>(a, num_tokens, warp, lane, inputs, angles, row_scales);
  __syncthreads();
  // Of the token whose sums the thread finishes; behind the last one it has none.
  const int mine = kTokens == 1 ? 0 : kCut ? min(thread / (4 * row_tiles), kTokens - 1) : lane % 4;
  float* const own = alone ? index_heads[mine] : heads[mine] + kHead / 2 * half;
  const float factor = p.matrices[alone ? 1 : 0].factor * row_scales[mine];
  const uint32_t x_begin = base + static_cast<uint32_t>(kRings) + first_tile * Products::kTile;
  float* const partials = reinterpret_cast<float*>(inputs + p.tile_cols * Products::kTile);
  if (first_task < row_tiles) chunks.MultiplyFirst(products, early, x_begin, tile_linear::NoScales());
#pragma unroll 1
  for (int task = first_task; task < row_tiles; task += W::kStep) {
    chunks.MultiplyRest(products, tile_linear::NoScales(), ask);
    const float2 sum = products.Take();
    if (kTokens == 1 ? lane % 4 == 0 : lane % 4 < num_tokens) {
      const float by = kCut ? 1.0f : factor;
      const int part = kTokens == 1 ? segment : segment * kTokens + lane % 4;
      float* to = kCut ? partials + part * kPartialStride + 16 * task : own + 16 * task;
      to[lane / 4] = sum.x * by;
      to[lane / 4 + 8] = sum.y * by;
    }
    chunks.Begin(count, x_begin);
  }
  __syncthreads();
  if constexpr (kCut) {
    if (thread >= 4 * row_tiles * num_tokens) return;
    AddSegments<kTokens>(partials + mine * kPartialStride, thread - 4 * row_tiles * mine, factor, own);
    // The warps that prepare and send read what the others add up.
    asm volatile("bar.sync 1, %0;" ::"r"(4 * row_tiles * num_tokens) : "memory");
  }
  if (alone) {
    if (has_token)
      FinishIndexHead(prepare, angles[token], index_heads[token], token * prepare.index_heads + number, lane);
    return;
  }
  constexpr int kSends = kHead / 8;  // of a token
  static_assert(kTokens * kSends <= kThreads);
  if (thread < num_tokens * kSends) {
    float* const row = kTokens == 1 ? own + 4 * thread
                                    : heads[thread / kSends] + kHead / 2 * half + 4 * (thread % kSends);
    gpu::Send(row, *reinterpret_cast<const uint4*>(row), at_rows, half ^ 1);
  }
  if (!has_token) return;
  at_rows.Wait(0);
  FinishHead(prepare, angles[token], heads[token], token * prepare.heads + number, half, lane);
}

}  // namespace

void ExpandPart(const ExecContext& ctx, const ExpandParams& params, const ExpandCut& cut, size_t pooled) {
  // At least as much as lets a multiprocessor have one block only, as linears do.
  const auto launch = [&](auto kernel, int tokens) {
    const size_t sums = cut.along_k ? Warps<true>::kSegments * kPartialStride * sizeof(float) : 0;
    const size_t inputs = static_cast<size_t>(params.linear.tile_cols) * tile_linear::kOneTokenTile;
    const size_t bytes = std::max<size_t>(
        {kRings + static_cast<size_t>(tokens) * (inputs + sums), pooled, tile_linear::kOneBlock});
    Launch(ctx, kernel, dim3(static_cast<unsigned>(cut.blocks)), dim3(kThreads), bytes, params);
  };
  constexpr int kFew = tile_linear::kFewTokens;
  if (params.linear.num_tokens == 1)
    return launch(cut.along_k ? ExpandPartKernel<true, 1> : ExpandPartKernel<false, 1>, 1);
  launch(cut.along_k ? ExpandPartKernel<true, kFew> : ExpandPartKernel<false, kFew>, kFew);
}

}  // namespace dsv4::q_prepare
