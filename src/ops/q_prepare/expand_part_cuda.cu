// The expansion (expand_cuda.cu) of one token for a rank that has a part of the heads and all index heads: there are
// multiprocessors enough for an index head to have a block of its own, behind the two of each head. K is cut where
// ops/linear would cut it for so few rows, in the same order, so the bits are the linear's and q_prepare's one after
// the other. A kernel of its own: with both forms in one the kernel of all heads has more instructions.
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
constexpr int kPartialStride = tile_linear::Exchange::Stride(kTiles);  // of a segment's sums

// What lies in a block's dynamic memory: rings, the token as fragments, segments' sums; the compressors' use the same.
constexpr size_t kRings = static_cast<size_t>(kWarps) * kRingBytes;

// Rows 4 `quad` .. + 3 of a block, from what the segments have of them.
__device__ __forceinline__ void AddSegments(const float* partials, int quad, float factor, float* rows) {
  const float4 sum = tile_linear::TreeSum(reinterpret_cast<const float4*>(partials) + quad, kPartialStride / 4,
                                          Warps<true>::kSegments);
  reinterpret_cast<float4*>(rows)[quad] = make_float4(sum.x * factor, sum.y * factor, sum.z * factor, sum.w * factor);
}

// All of index head `number`, by a warp.
__device__ __forceinline__ void FinishIndexHead(const Params& a, const float2* angles, const float* rows, int number,
                                                int lane) {
  Head<kIndexHead / 64> q;
  q.Load(rows, kIndexHead, lane);
  PrepareIndexHead(a, angles, kIndexHead, a.pairs, lane, q);
  q.Store(a.index_q + number * kIndexHead, kIndexHead, lane);
}

// A block's half of head `number`, by a warp.
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

// What a block beside the heads' does: a compressor, or the token's own row.
__device__ __forceinline__ void OtherTask(const Params& a, int task, int warp, int lane, uint8_t* shared) {
  if (task < a.num_compress) {
    CompressorTask<kThreads, true>(a, task, reinterpret_cast<float*>(shared));
  } else if (task == a.num_compress && warp == 0) {
    PrefetchWeights(a.kv_norm, a.dh, lane);
    gpu::RowPointer to = {nullptr, nullptr};
    if (a.append) to = gpu::WindowRow(a.layer, a.sequences[a.sequence_of[0]], a.positions[0]);
    WaitForPrevious();
    Task<kHead / 64>(a, 0, lane, a.dh, a.di, a.pairs, to);
  }
}

template <bool kCut>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    ExpandPartKernel(const __grid_constant__ ExpandParams a) {
  using W = Warps<kCut>;
  constexpr int kSlots = W::kSlots, kSlotBytes = W::kSlotBytes, kChunk = W::kChunk;
  using Chunks = tile_linear::WarpChunks<kFormat, 1, kChunk, false, kSlots, kSlotBytes>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t full[kWarps * kSlots];
  __shared__ gpu::ClusterBarrier at_rows;
  __shared__ __align__(16) float head[kHead];
  __shared__ __align__(16) float index_head[kIndexHead];
  __shared__ float2 angles[32];
  __shared__ float row_scale;
  AllowNext();
  const tile_linear::Params& p = a.linear;
  const Params& prepare = a.prepare;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int warp = __shfl_sync(0xFFFFFFFFu, thread / 32, 0);
  const int block = static_cast<int>(blockIdx.x), head_blocks = 2 * prepare.heads;
  const int behind = block - head_blocks - static_cast<int>(prepare.num_index);
  if (behind >= 0) {
    OtherTask(prepare, behind, warp, lane, shared);
    return;
  }

  const bool alone = block >= head_blocks;  // the block makes an index head
  const int number = alone ? block - head_blocks : block / 2, half = block % 2;
  if (thread == 0 && !alone) {
    at_rows.Init(1);
    BarrierInitFence();
    at_rows.Expect(static_cast<uint32_t>(sizeof head / 2));
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
  const int row_tiles = alone ? kIndexTiles : kTiles, first_row_tile = row_tiles * (alone ? number : block);
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
  // The first chunk is decoded before the token is there.
  tile_linear::OneTokenTiles<kFormat> products(static_cast<uint32_t>(lane));
  uint32_t early[kChunk][4][4];
  chunks.Begin(count);
  if (first_task < row_tiles) chunks.DecodeFirst(products, early, ask);
  if (!alone) ClusterWait();
  WaitForPrevious();

  uint8_t* const inputs = shared + kRings;
  if (thread < prepare.pairs) angles[thread] = prepare.cos_sin[thread];
  tile_linear::StageOneToken(p, 0, inputs);
  if (warp == kWarps - 1) tile_linear::ScaleOfToken(p, 0, &row_scale);
  __syncthreads();
  float* const own = alone ? index_head : head + kHead / 2 * half;
  const float factor = p.matrices[alone ? 1 : 0].factor * row_scale;
  const uint32_t x_begin = base + static_cast<uint32_t>(kRings) + first_tile * tile_linear::kOneTokenTile;
  float* const partials = reinterpret_cast<float*>(inputs + p.tile_cols * tile_linear::kOneTokenTile);
  if (first_task < row_tiles) chunks.MultiplyFirst(products, early, x_begin, tile_linear::NoScales());
#pragma unroll 1
  for (int task = first_task; task < row_tiles; task += W::kStep) {
    chunks.MultiplyRest(products, tile_linear::NoScales(), ask);
    const float2 sum = products.Take();
    if (lane % 4 == 0) {
      const float by = kCut ? 1.0f : factor;
      float* to = kCut ? partials + segment * kPartialStride + 16 * task : own + 16 * task;
      to[lane / 4] = sum.x * by;
      to[lane / 4 + 8] = sum.y * by;
    }
    chunks.Begin(count, x_begin);
  }
  __syncthreads();
  if constexpr (kCut) {
    if (thread >= 4 * row_tiles) return;
    AddSegments(partials, thread, factor, own);
    // The warps that prepare and send read what the others add up.
    asm volatile("bar.sync 1, %0;" ::"r"(4 * row_tiles) : "memory");
  }
  if (alone) {
    if (warp == 0) FinishIndexHead(prepare, angles, index_head, number, lane);
    return;
  }
  if (thread < kHead / 8) {
    gpu::Send(own + 4 * thread, *reinterpret_cast<const uint4*>(own + 4 * thread), at_rows, half ^ 1);
  }
  if (warp > 0) return;
  at_rows.Wait(0);
  FinishHead(prepare, angles, head, number, half, lane);
}

}  // namespace

void ExpandPart(const ExecContext& ctx, const ExpandParams& params, const ExpandCut& cut, size_t pooled) {
  // At least as much as lets a multiprocessor have one block only, as linears do.
  const size_t sums = cut.along_k ? Warps<true>::kSegments * kPartialStride * sizeof(float) : 0;
  const size_t inputs = static_cast<size_t>(params.linear.tile_cols) * tile_linear::kOneTokenTile;
  const size_t bytes = std::max<size_t>({kRings + inputs + sums, pooled, tile_linear::kOneBlock});
  Launch(ctx, cut.along_k ? ExpandPartKernel<true> : ExpandPartKernel<false>, dim3(static_cast<unsigned>(cut.blocks)),
         dim3(kThreads), bytes, params);
}

}  // namespace dsv4::q_prepare
