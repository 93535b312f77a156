// The expansion (expand_cuda.cu) for a rank that has a part of the heads and all index heads. There are enough
// multiprocessors for two blocks per head and one per index head. K is divided if ops/linear divides it for this number
// of rows, in the same order. So the bits are the same as with linear and q_prepare one after the other. It is a
// separate kernel because one kernel with both forms has more instructions for all heads.
#include "device/cluster.cuh"
#include "ops/q_prepare/expand.cuh"

namespace dsv4::q_prepare {

namespace {

constexpr int kThreads = tile_linear::kThreads, kWarps = tile_linear::kWarps;
constexpr int kTiles = kHead / 2 / 16, kIndexTiles = kIndexHead / 16;      // row tiles of a block
constexpr int kRingBytes = tile_linear::kSlots * tile_linear::kSlotBytes;  // of a warp
constexpr int kTile = static_cast<int>(TileBytes(kFormat));
static_assert(kTiles == kWarps && kIndexTiles <= kWarps);

// kCut: K is divided into segments, and a warp multiplies one segment with some row tiles. Otherwise a warp multiplies
// all of K with its own row tiles.
template <bool kCut>
struct Warps {
  static constexpr int kLogSegments = kCut ? 3 : 0, kSegments = 1 << kLogSegments, kStep = kWarps / kSegments;
  // Tiles of a copy: segments are short.
  static constexpr int kChunk = kCut ? 2 : 4, kSlotBytes = kChunk * kTile, kSlots = kRingBytes / kSlotBytes;
};
constexpr int kPartialStride = tile_linear::Exchange::Stride(kTiles);  // stride of a segment's sums of a token

// The layout of a block's dynamic shared memory: rings, the tokens as fragments, segments' sums [segment][token][row].
// The compressors use the same memory.
constexpr size_t kRings = static_cast<size_t>(kWarps) * kRingBytes;

// Adds the segments' sums of rows 4 `quad` .. + 3 of a block for one token; kTokens: capacity.
template <int kTokens>
__device__ __forceinline__ void AddSegments(const float* partials, int quad, float factor, float* rows) {
  const float4 sum = tile_linear::TreeSum(reinterpret_cast<const float4*>(partials) + quad,
                                          kTokens * kPartialStride / 4, Warps<true>::kSegments);
  reinterpret_cast<float4*>(rows)[quad] = make_float4(sum.x * factor, sum.y * factor, sum.z * factor, sum.w * factor);
}

// Finishes a whole index head by a warp; `number` counts over all tokens' index heads.
__device__ __forceinline__ void FinishIndexHead(const Params& a, const float2* angles, const float* rows, int number,
                                                int lane) {
  Head<kIndexHead / 64> q;
  q.Load(rows, kIndexHead, lane);
  PrepareIndexHead(a, angles, kIndexHead, a.pairs, lane, q);
  q.Store(a.index_q + number * kIndexHead, kIndexHead, lane);
}

// Finishes a block's half of a head by a warp.
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

// The task of a block. With several tokens compressors take longest if rows end among them, which is so in most steps.
// Then the blocks without heads come first. Heads begin at an even block, because two blocks are a cluster.
template <int kTokens>
struct Place {
  int other;   // a task other than the heads; negative: none
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

// kTokens: capacity, at least the number of tokens.
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
  const int token = kTokens == 1 ? 0 : warp;  // the token that the warp prepares, if any
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
  // Through a shuffle, so that loops do not compute it again.
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
  // The first chunk is decoded before the tokens are available.
  Products products(static_cast<uint32_t>(lane));
  uint32_t early[kChunk][4][4];
  chunks.Begin(count);
  if (first_task < row_tiles) chunks.DecodeFirst(products, early, ask);
  if (!alone) ClusterWait();
  WaitForPrevious();

  uint8_t* const inputs = shared + kRings;
  StageQueries<kTokens>(a, num_tokens, warp, lane, inputs, angles, row_scales);
  __syncthreads();
  // The token whose sums the thread finishes; none after the last token.
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
    // The warps that prepare and send read the sums of the others.
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
  // Enough shared memory that a multiprocessor runs only one block, as in linears.
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
