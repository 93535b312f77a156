// Queries from their low rank, for one token or a few of one sequence: the linears and the work of q_prepare on their
// output, in one launch.
//
// A cluster of two blocks computes one head and, if there are index heads, one index head. Each block computes half of
// their rows, a warp the rows of one tile or two. The blocks send each other their halves (device/cluster.cuh). Then a
// warp of each block prepares a token's whole head, another warp its index head, and each writes its own half. Other
// blocks process the tokens' own rows and the compressors, which do not read the queries. The products and their order
// are the same as in ops/linear (tile/warp_chunks.cuh); heads.cuh processes the heads.
#include "device/cluster.cuh"
#include "ops/q_prepare/expand.cuh"

namespace dsv4::q_prepare {

namespace {

constexpr int kThreads = tile_linear::kThreads, kWarps = tile_linear::kWarps;
constexpr int kTiles = kHead / 2 / 16, kIndexTiles = kIndexHead / 2 / 16;  // row tiles of a block
constexpr int kSlots = tile_linear::kSlots, kSlotBytes = tile_linear::kSlotBytes;
constexpr int kChunk = 4;  // tiles of a copy
static_assert(2 * kMostTokens <= kWarps);
static_assert(kTiles == kWarps && kIndexTiles <= kWarps);

// The layout of a block's dynamic shared memory: rings, then the token as fragments. The compressors use the same
// memory.
inline size_t RingBytes() { return static_cast<size_t>(kWarps) * kSlots * kSlotBytes; }

// Sends four rows, 4 i .., to the other block of the cluster.
__device__ __forceinline__ void SendRows(float* rows, int i, gpu::ClusterBarrier& at, int to) {
  const uint4 v = *reinterpret_cast<const uint4*>(rows + 4 * i);
  gpu::Send(rows + 4 * i, v, at, to);
}

// Sends the block's halves of the heads to the other block.
template <int kTokens>
__device__ __forceinline__ void SendHalves(float (&heads)[kTokens][kHead], float (&index_heads)[kTokens][kIndexHead],
                                           int num_tokens, bool indexes, int half, gpu::ClusterBarrier& at) {
  constexpr int kSends = kHead / 8, kIndexSends = kIndexHead / 8;
  static_assert(kTokens * (kSends + kIndexSends) <= kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < num_tokens * kSends) {
    SendRows(heads[thread / kSends] + kHead / 2 * half, thread % kSends, at, half ^ 1);
  } else if (const int i = thread - num_tokens * kSends; indexes && i < num_tokens * kIndexSends) {
    SendRows(index_heads[i / kIndexSends] + kIndexHead / 2 * half, i % kIndexSends, at, half ^ 1);
  }
}

// kTokens: capacity, at least the number of tokens.
template <int kTokens>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    ExpandKernel(const __grid_constant__ ExpandParams a) {
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
  // Compressors take longest if rows end among the tokens, which is so in most steps of several tokens. Then they begin
  // first.
  const int others = static_cast<int>(gridDim.x) - 2 * prepare.heads;
  const int behind = static_cast<int>(blockIdx.x) - (kTokens == 1 ? 2 * prepare.heads : 0);
  if (kTokens == 1 ? behind >= 0 : behind < others) {
    OtherTask<kTokens == 1>(prepare, behind, warp < num_tokens, warp, lane, shared);
    return;
  }

  const int of_heads = static_cast<int>(blockIdx.x) - (kTokens == 1 ? 0 : others), number = of_heads / 2,
            half = of_heads % 2;
  const bool indexes = prepare.num_index > 0;
  if (thread == 0) {
    at_rows.Init(1);
    BarrierInitFence();
    at_rows.Expect(static_cast<uint32_t>(num_tokens * (kHead + (indexes ? kIndexHead : 0)) * 2));
  }
  // Through a shuffle, so that loops do not compute it again.
  const uint32_t base = __shfl_sync(0xFFFFFFFFu, SharedAddress(shared), 0),
                 ready = __shfl_sync(0xFFFFFFFFu, SharedAddress(full), 0);
  Chunks chunks(base, ready, warp);
  ClusterArriveRelaxed();  // "I run"

  // The warp's chunks: its row tile of the head, then, for some warps, one of the index head.
  const int num_chunks = (p.tile_cols + kChunk - 1) / kChunk, tasks = indexes && warp < kIndexTiles ? 2 : 1;
  const int64_t row_bytes = static_cast<int64_t>(p.tile_cols) * TileBytes(kFormat);
  const auto codes = [&](int task) {
    return task == 0 ? p.matrices[0].codes + (2 * kTiles * number + kTiles * half + warp) * row_bytes
                     : p.matrices[1].codes + (2 * kIndexTiles * number + kIndexTiles * half + warp) * row_bytes;
  };
  int asked_task = 0, asked = 0;
  const uint8_t* from = codes(0);
  const auto ask = [&](uint32_t slot, uint32_t barrier) {
    if (asked_task >= tasks) return;
    const uint32_t bytes = static_cast<uint32_t>(min(kChunk, p.tile_cols - asked * kChunk)) *
                           static_cast<uint32_t>(TileBytes(kFormat));
    if (ElectLane()) {
      BarrierExpect(barrier, bytes);
      BulkLoad(slot, from, bytes, barrier, p.policy);
    }
    from += bytes;
    if (++asked < num_chunks) return;
    asked = 0;
    if (++asked_task < tasks) from = codes(asked_task);
  };
  chunks.Fill(ask);
  if (thread < (p.cols + 31) / 32) asm volatile("prefetch.global.L2 [%0];" ::"l"(p.norm + 32 * thread));
  // The first chunk is decoded before the token is available.
  Products products(static_cast<uint32_t>(lane));
  uint32_t early[kChunk][4][4];
  chunks.Begin(p.tile_cols);
  chunks.DecodeFirst(products, early, ask);
  ClusterWait();
  WaitForPrevious();

  uint8_t* const inputs = shared + kWarps * kSlots * kSlotBytes;
  StageQueries<kTokens>(a, num_tokens, warp, lane, inputs, angles, row_scales);
  __syncthreads();
  const uint32_t x_begin = base + kWarps * kSlots * kSlotBytes;
  chunks.MultiplyFirst(products, early, x_begin, tile_linear::NoScales());
#pragma unroll 1
  for (int task = 0; task < tasks; ++task) {
    chunks.MultiplyRest(products, tile_linear::NoScales(), ask);
    const float2 sum = products.Take();
    const int token = kTokens == 1 ? 0 : lane % 4;
    if (kTokens == 1 ? lane % 4 == 0 : token < num_tokens) {
      const float factor = p.matrices[task].factor * row_scales[token];
      float* to = (task == 0 ? heads[token] + kHead / 2 * half : index_heads[token] + kIndexHead / 2 * half) +
                  16 * warp + lane / 4;
      to[0] = sum.x * factor;
      to[8] = sum.y * factor;
    }
    chunks.Begin(p.tile_cols, x_begin);
  }
  __syncthreads();
  SendHalves(heads, index_heads, num_tokens, indexes, half, at_rows);
  if (warp >= (indexes ? 2 : 1) * num_tokens) return;
  at_rows.Wait(0);
  if (warp < num_tokens) {
    Head<kHead / 64> q;
    q.Load(heads[warp], kHead, lane);
    q.Norm(kHead, prepare.eps);
    q.Rotate(angles[warp], kHead, prepare.pairs, lane);
    float* to = prepare.q + (warp * prepare.heads + number) * kHead + 2 * lane;
#pragma unroll
    for (int j = 0; j < kHead / 64; ++j) {
      if (j / (kHead / 128) == half) *reinterpret_cast<float2*>(to + 64 * j) = q.x[j];
    }
  } else {
    const int token = warp - num_tokens;
    Head<kIndexHead / 64> q;
    q.Load(index_heads[token], kIndexHead, lane);
    PrepareIndexHead(prepare, angles[token], kIndexHead, prepare.pairs, lane, q);
    float* to = prepare.index_q + (token * prepare.heads + number) * kIndexHead + 2 * lane;
#pragma unroll
    for (int j = 0; j < kIndexHead / 64; ++j) {
      if (j == half) *reinterpret_cast<float2*>(to + 64 * j) = q.x[j];
    }
  }
}

}  // namespace

void Expand(const ExecContext& ctx, const QPrepareArgs& a) {
  const LinearArgs& linears = *a.expands;
  ExpandParams params = {.linear = {}, .prepare = MakeParams(a)};
  const int64_t pooled = AddCompress(a, params.prepare, kThreads) * static_cast<int64_t>(sizeof(float));
  tile_linear::Params& p = params.linear;
  p.x = linears.x.f32();
  p.cols = static_cast<int>(linears.x.dim(1));
  p.x_stride = p.cols;
  p.tile_cols = static_cast<int>(CeilDiv(p.cols, kTileCols64));
  p.num_tokens = static_cast<int>(linears.x.dim(0));
  p.policy = kEvictFirst;
  p.norm = linears.norm.f32();
  p.norm_eps = linears.norm_eps;
  for (int i = 0; i < linears.parts.size(); ++i) {
    const QuantTensor& w = linears.parts[i].w;
    p.matrices[i].codes = w.codes;
    p.matrices[i].factor = w.global_scale * MmaFactor(w.format);
  }
  const ExpandCut cut = CutOf(ctx, ShapeOf(a, linears));
  if (cut.part) return ExpandPart(ctx, params, cut, static_cast<size_t>(pooled));
  // Enough shared memory that a multiprocessor runs only one block, as in linears.
  const auto launch = [&](auto kernel, int tokens) {
    const size_t inputs = static_cast<size_t>(p.tile_cols * tokens * tile_linear::kOneTokenTile);
    const size_t bytes = std::max<size_t>({RingBytes() + inputs, static_cast<size_t>(pooled), tile_linear::kOneBlock});
    Launch(ctx, kernel, dim3(static_cast<unsigned>(cut.blocks)), dim3(kThreads), bytes, params);
  };
  if (p.num_tokens == 1) return launch(ExpandKernel<1>, 1);
  launch(ExpandKernel<tile_linear::kFewTokens>, tile_linear::kFewTokens);
}

}  // namespace dsv4::q_prepare
