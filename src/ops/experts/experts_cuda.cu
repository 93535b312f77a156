#include <algorithm>

#include "ops/experts/expert_launch.cuh"
#include "ops/experts/experts_scratch.h"
#include "ops/experts/experts_sm90.h"
#include "ops/idle_row.h"

namespace dsv4 {

namespace experts {
namespace {

constexpr int kPlanThreads = 1024;
constexpr int kMaxExperts = static_cast<int>(kMaxExpertsOnGpu);
constexpr int64_t kCostByTokenFrom = 4, kCostByTokenTo = 24;  // numbers of tokens for which CostBy::kTokens is faster
// up to this many tokens weights are read once and need no space in L2; no sum depends on it
constexpr int64_t kStreamedTokens = 64;

int DivUp(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

__device__ __forceinline__ int BoundedExpert(int32_t e, int num_experts) { return min(max(e, 0), num_experts - 1); }

// Inclusive prefix sum over the block's threads.
__device__ __forceinline__ int BlockScan(int x) {
  __shared__ int warps[kPlanThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const int left = __shfl_up_sync(0xFFFFFFFFu, x, o);
    if (lane >= o) x += left;
  }
  __syncthreads();
  if (lane == 31) warps[warp] = x;
  __syncthreads();
  int before = 0;
  for (int w = 0; w < warp; ++w) before += warps[w];
  return before + x;
}

// Sorts the pairs that have an expert by it, and makes the chunks; empty chunks follow up to max_chunks. Within an
// expert the order varies from run to run, but no result depends on it.
template <int Planes>
__device__ void SortPairs(const int32_t* experts, int num_pairs, int num_experts, int chunk_tokens, CostBy by,
                          int max_chunks, int32_t* plan, Chunk* chunks, int32_t* pairs) {
  __shared__ int count[kMaxExperts], next[kMaxExperts + 1];  // after the experts: number of chunks
  const int e = threadIdx.x;
  count[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < num_pairs; i += kPlanThreads) {
    if (experts[i] != kNoExpert) atomicAdd(&count[BoundedExpert(experts[i], num_experts)], 1);
  }
  __syncthreads();
  const int mine = count[e], begin = BlockScan(mine) - mine;
  const int my_chunks = (mine + chunk_tokens - 1) / chunk_tokens, last_chunk = BlockScan(my_chunks),
            first_chunk = last_chunk - my_chunks;
  int my_cost = 0;
  for (int i = 0; i < my_chunks; ++i) my_cost += ChunkCost(min(mine - i * chunk_tokens, chunk_tokens), Planes, by);
  const int last_cost = BlockScan(my_cost);
  int cost = last_cost - my_cost;
  next[e] = begin;
  for (int i = 0; i < my_chunks; ++i) {
    const int size = min(mine - i * chunk_tokens, chunk_tokens);
    chunks[first_chunk + i] = {e, begin + i * chunk_tokens, size, cost};
    cost += ChunkCost(size, Planes, by);
  }
  const int uneven = __syncthreads_or(mine > 0 && ChunkCost(min(mine, chunk_tokens), Planes, by) != kLeastCost);
  if (threadIdx.x == kPlanThreads - 1) {
    plan[0] = last_chunk, plan[1] = last_cost, plan[2] = uneven;
    next[kMaxExperts] = last_chunk;
  }
  __syncthreads();
  for (int i = next[kMaxExperts] + static_cast<int>(threadIdx.x); i < max_chunks; i += kPlanThreads) chunks[i] = {};
  for (int i = threadIdx.x; i < num_pairs; i += kPlanThreads) {
    if (experts[i] != kNoExpert) pairs[atomicAdd(&next[BoundedExpert(experts[i], num_experts)], 1)] = i;
  }
}

// Converts rows x [rows, stride] to planes [Planes][rows, padded K].
template <int Planes, int Threads>
__device__ void PrepareRow(const float* x, int64_t k, int64_t row, ActivationDtype mode, uint16_t* planes,
                           int64_t plane_elements) {
  const int64_t padded = PaddedColumns(k);
  uint16_t* to = planes + row * padded;
  RoundedRow<Threads>(x, k, mode, [&](int64_t i, float value) {
    uint16_t part[Planes];
    SplitBf16<Planes>(value, part);
#pragma unroll
    for (int p = 0; p < Planes; ++p) to[p * plane_elements + i] = part[p];
  });
  for (int64_t i = k + threadIdx.x; i < padded; i += Threads) {
#pragma unroll
    for (int p = 0; p < Planes; ++p) to[p * plane_elements + i] = 0;
  }
}

// Sets o[t, a] = 0 for the choices of `row` without an expert.
__device__ __forceinline__ void ClearOutputs(const int32_t* experts, int slots, int64_t row, int d, float* outputs) {
  for (int64_t pair = row * slots; pair < (row + 1) * slots; ++pair) {
    if (experts[pair] != kNoExpert) continue;
    for (int c = threadIdx.x; c < d; c += kPlanThreads) outputs[pair * d + c] = 0;
  }
}

// Block 0 makes the plan. Each other block converts a row of x and clears the row's choices without an expert.
template <int Planes>
__global__ void __launch_bounds__(kPlanThreads)
    PlanKernel(const int32_t* experts, int num_pairs, int num_experts, int chunk_tokens, CostBy by, int max_chunks,
               int32_t* plan, Chunk* chunks, int32_t* pairs, const float* x, int k, ActivationDtype mode,
               uint16_t* planes, int64_t plane_elements, float* outputs) {
  WaitForPrevious();
  AllowNext();
  if (blockIdx.x == 0) {
    SortPairs<Planes>(experts, num_pairs, num_experts, chunk_tokens, by, max_chunks, plan, chunks, pairs);
  } else {
    const int64_t row = blockIdx.x - 1;
    PrepareRow<Planes, kPlanThreads>(x + row * k, k, row, mode, planes, plane_elements);
    ClearOutputs(experts, num_pairs / static_cast<int>(gridDim.x - 1), row, k, outputs);
  }
}

// Converts hidden rows [rows, stride 2F] to planes.
template <int Planes>
__global__ void __launch_bounds__(256)
    HiddenKernel(const float* hidden, int f, ActivationDtype mode, uint16_t* planes, int64_t plane_elements) {
  WaitForPrevious();
  AllowNext();
  PrepareRow<Planes, 256>(hidden + int64_t{blockIdx.x} * 2 * f, f, blockIdx.x, mode, planes, plane_elements);
}

// y[t] = shared[t] + sum of the choices' outputs, in order.
__global__ void __launch_bounds__(256)
    CombineKernel(const float* shared, const float* outputs, float* y, int d, int slots) {
  AllowNext();
  WaitForPrevious();
  const int c = blockIdx.x * 256 + threadIdx.x;
  const int64_t t = blockIdx.y;
  if (c >= d) return;
  constexpr int kAhead = 8;  // choices whose loads are in flight together
  float sum = shared != nullptr ? shared[t * d + c] : 0.0f;
  for (int first = 0; first < slots; first += kAhead) {
    float v[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (first + a < slots) v[a] = outputs[(t * slots + first + a) * d + c];
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (first + a < slots) sum += v[a];
    }
  }
  y[t * d + c] = sum;
}

// float32 matrices in rows: one warp per row and pair. For tests and small models.
__global__ void __launch_bounds__(256) F32UpKernel(GemmArgs a, float* hidden) {
  AllowNext();
  WaitForPrevious();
  const int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, pair = blockIdx.y;
  if (row >= a.n || a.experts[pair] == kNoExpert) return;
  const ExpertMatrices& m = a.matrices[BoundedExpert(a.experts[pair], a.num_experts)];
  const float* x = a.x + int64_t{pair / a.num_slots} * a.k;
  const float* gate = reinterpret_cast<const float*>(m.gate.codes) + int64_t{row} * a.k;
  const float* up = reinterpret_cast<const float*>(m.up.codes) + int64_t{row} * a.k;
  float g = 0, u = 0;
  for (int i = lane; i < a.k; i += 32) g += x[i] * gate[i], u += x[i] * up[i];
  g = WarpSum(g), u = WarpSum(u);
  if (lane == 0) hidden[int64_t{pair} * 2 * a.n + row] = SwigluValue(g, u, a.limit) * a.weights[pair];
}
__global__ void __launch_bounds__(256) F32DownKernel(GemmArgs a, const float* hidden) {
  AllowNext();
  WaitForPrevious();
  const int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, pair = blockIdx.y;
  if (row >= a.n) return;
  const float* h = hidden + int64_t{pair} * 2 * a.k;
  const float* w = reinterpret_cast<const float*>(
                       a.matrices[BoundedExpert(a.experts[pair], a.num_experts)].down.codes) +
                   int64_t{row} * a.k;
  float sum = 0;
  const bool none = a.experts[pair] == kNoExpert;
  for (int i = lane; i < a.k; i += 32) sum += none ? 0.0f : h[i] * w[i];
  sum = WarpSum(sum);
  if (lane == 0) a.outputs[int64_t{pair} * a.n + row] = sum;
}

template <bool Up, int Planes, bool Wide>
void GemmOf(const ExecContext& ctx, WeightFormat format, const GemmArgs& a, int64_t max_chunks) {
  WithTileFormat(format, [&]<WeightFormat F>() { Gemm<F, Planes, Up, Wide>(ctx, a, max_chunks); });
}

void FewOf(const ExecContext& ctx, WeightFormat format, bool up, const GemmArgs& a, int64_t tokens,
           int64_t max_chunks) {
  if (IsTight(format)) return FewTight(ctx, format, up, a, tokens, max_chunks);
  WithTileFormat(format, [&]<WeightFormat F>() { LaunchFew<F>(ctx, a, up, tokens, max_chunks); });
}

void ManyOf(const ExecContext& ctx, WeightFormat format, bool up, const GemmArgs& a, int64_t max_chunks) {
  if (IsTight(format)) return ManyTight(ctx, format, up, a, max_chunks);
  WithTileFormat(format, [&]<WeightFormat F>() { LaunchMany<F>(ctx, a, up, max_chunks); });
}

template <bool Up>
void GemmOf(const ExecContext& ctx, WeightFormat format, bool wide, const GemmArgs& a, int64_t max_chunks) {
  if (IsTight(format)) return GemmTight(ctx, format, Up, wide, a, max_chunks);
  if (ctx.f32_inputs) return GemmOf<Up, 3, true>(ctx, format, a, max_chunks);
  if (wide) return GemmOf<Up, 2, true>(ctx, format, a, max_chunks);
  return GemmOf<Up, 2, false>(ctx, format, a, max_chunks);
}

// The state of a call of the kernels of decode rows: its form, memory and sizes.
struct Grouped {
  const ExecContext& ctx;
  const ExpertsArgs& a;
  int64_t t, d, slots, pairs, f, num_experts;
  int planes;                   // BF16 terms of an input
  bool up_packed, down_packed;  // in tiles; else float32 rows
  DecodeForm form;
  CostBy cost_by;
  int64_t chunk_tokens, max_chunks;
  GroupedScratch places;
  GemmArgs up, down;

  template <typename T>
  T* At(int64_t place) const {
    return reinterpret_cast<T*>(ctx.scratch.data + place);
  }
};

Grouped GroupedOf(const ExecContext& ctx, const ExpertsArgs& a) {
  Grouped g = {.ctx = ctx, .a = a};
  g.t = a.x.dim(0), g.d = a.x.dim(1), g.slots = a.experts.dim(1), g.pairs = g.t * g.slots, g.f = a.hidden.dim(1) / 2;
  g.num_experts = static_cast<int64_t>(a.matrices.size());
  DSV4_CHECK(g.num_experts <= kMaxExperts && g.pairs < (int64_t{1} << 31) && g.t <= kMaxTokensOnGpu);
  DSV4_CHECK(a.first.up.format == a.first.gate.format, "gate and up of one format");
  g.planes = ctx.f32_inputs ? 3 : 2;
  g.up_packed = a.first.gate.format != WeightFormat::kF32, g.down_packed = a.first.down.format != WeightFormat::kF32;
  g.form = DecodeFormOf(ctx, ShapeOf(a), g.t, reinterpret_cast<uintptr_t>(a.x.data) % 16 == 0);
  const bool by_token = !g.form.wide && g.t >= kCostByTokenFrom && g.t <= kCostByTokenTo;
  g.cost_by = g.form.many ? CostBy::kTeams : by_token ? CostBy::kTokens : CostBy::kBlocks;
  g.chunk_tokens = g.form.many ? kManyChunk : BlockTokens(g.planes) * (g.form.wide ? 2 : 1);
  g.max_chunks = g.form.direct ? g.slots : std::min<int64_t>(g.pairs, g.num_experts + g.pairs / g.chunk_tokens);
  g.places = GroupedScratchOf(ctx, ShapeOf(a), g.t);
  static_assert(sizeof(Chunk) == kChunkBytes);
  DSV4_CHECK(g.places.bytes <= ctx.scratch.bytes);
  return g;
}

// Sets up both products for one token or a few, which need no plan.
void SetProducts(Grouped& g) {
  const ExpertsArgs& a = g.a;
  g.up = {.matrices = a.matrices.data(),
          .num_experts = static_cast<int>(g.num_experts),
          .experts = a.experts.i32(),
          .num_slots = static_cast<int>(g.slots),
          .x = a.x.f32(),
          .k = static_cast<int>(g.d),
          .n = static_cast<int>(g.f),
          .limit = a.limit,
          .weights = a.weights.f32(),
          .policy = g.t <= kStreamedTokens ? kEvictFirst : kEvictNormal};
  g.down = g.up;
  if ((g.form.direct || g.form.few) && g.slots > 1) g.up.always = a.always;
  g.down.x = nullptr, g.down.k = static_cast<int>(g.f), g.down.n = static_cast<int>(g.d);
  g.down.outputs = a.outputs.f32();
  g.down.planes = g.At<uint16_t>(g.places.hidden_planes), g.down.plane_elements = g.pairs * PaddedColumns(g.f);
  if (g.form.hidden_f32) {
    g.up.hidden = a.hidden.f32();
  } else {
    g.up.hidden_planes = g.At<uint16_t>(g.places.hidden_planes), g.up.hidden_plane_elements = g.down.plane_elements;
  }
}

// Launches PlanKernel and sets its results as the products' chunks and inputs.
void MakePlan(Grouped& g) {
  int32_t* plan = g.At<int32_t>(g.places.plan);
  Chunk* chunks = g.At<Chunk>(g.places.chunks);
  int32_t* sorted = g.At<int32_t>(g.places.pairs);
  const int64_t x_elements = g.t * PaddedColumns(g.d);
  uint16_t* x_planes = g.At<uint16_t>(g.places.x_planes);
  Launch(g.ctx, g.planes == 3 ? PlanKernel<3> : PlanKernel<2>, dim3(static_cast<unsigned>(1 + g.t)), dim3(kPlanThreads),
         0, g.a.experts.i32(), static_cast<int>(g.pairs), static_cast<int>(g.num_experts),
         static_cast<int>(g.chunk_tokens), g.cost_by, static_cast<int>(g.max_chunks), plan, chunks, sorted, g.a.x.f32(),
         static_cast<int>(g.d), g.form.round_x ? g.a.activation : ActivationDtype::kNative, x_planes, x_elements,
         g.a.outputs.f32());
  for (GemmArgs* args : {&g.up, &g.down})
    args->plan = plan, args->cost_by = g.cost_by, args->chunks = chunks, args->pairs = sorted;
  if (g.up_packed) {
    g.up.experts = nullptr, g.up.x = nullptr, g.up.row_is_token = true;
    g.up.planes = x_planes, g.up.plane_elements = x_elements;
  }
  if (g.down_packed) g.down.experts = nullptr;
}

void MultiplyUp(const Grouped& g) {
  if (g.form.few) return FewOf(g.ctx, g.a.first.gate.format, true, g.up, g.t, g.max_chunks);
  if (g.form.many) return ManyOf(g.ctx, g.a.first.gate.format, true, g.up, g.max_chunks);
  if (g.up_packed) return GemmOf<true>(g.ctx, g.a.first.gate.format, g.form.wide, g.up, g.max_chunks);
  Launch(g.ctx, F32UpKernel, dim3(static_cast<unsigned>(DivUp(g.f, 8)), static_cast<unsigned>(g.pairs)), dim3(256), 0,
         g.up, g.a.hidden.f32());
}

void MultiplyDown(const Grouped& g) {
  if (g.form.few) return FewOf(g.ctx, g.a.first.down.format, false, g.down, g.t, g.max_chunks);
  if (g.form.many) return ManyOf(g.ctx, g.a.first.down.format, false, g.down, g.max_chunks);
  if (!g.down_packed) {
    return Launch(g.ctx, F32DownKernel, dim3(static_cast<unsigned>(DivUp(g.d, 8)), static_cast<unsigned>(g.pairs)),
                  dim3(256), 0, g.down, g.a.hidden.f32());
  }
  if (g.form.hidden_f32) {
    Launch(g.ctx, g.planes == 3 ? HiddenKernel<3> : HiddenKernel<2>, dim3(static_cast<unsigned>(g.pairs)), dim3(256), 0,
           g.a.hidden.f32(), static_cast<int>(g.f), g.form.round_hidden ? g.a.activation : ActivationDtype::kNative,
           g.At<uint16_t>(g.places.hidden_planes), g.down.plane_elements);
  }
  GemmOf<false>(g.ctx, g.a.first.down.format, g.form.wide, g.down, g.max_chunks);
}

// Computes the rows of `a`, at most ExpertsRowsAtOnce, with the kernels of decode rows.
void MultiplyGrouped(const ExecContext& ctx, const ExpertsArgs& a) {
  Grouped g = GroupedOf(ctx, a);
  SetProducts(g);
  if (!g.form.direct && !g.form.few && (g.up_packed || g.down_packed)) MakePlan(g);
  MultiplyUp(g);
  MultiplyDown(g);
  if (!a.y) return;
  Launch(ctx, CombineKernel, dim3(static_cast<unsigned>(DivUp(g.d, 256)), static_cast<unsigned>(g.t)), dim3(256), 0,
         a.shared ? a.shared.f32() : nullptr, a.outputs.f32(), a.y.f32(), static_cast<int>(g.d),
         static_cast<int>(g.slots));
}

}  // namespace
}  // namespace experts

void ExpertsCuda(const ExecContext& ctx, const ExpertsArgs& a) {
  const int64_t rows = a.x.dim(0);
  if (rows == 0) return;
  const ExpertsShape shape = ShapeOf(a);
  const bool prompt = a.shared && ExpertsRunAsPrompt(ctx, a.first, a.activation, shape.num_experts);
  DSV4_CHECK(prompt || a.fetched == nullptr);
  const int64_t at_once = ExpertsRowsAtOnce(ctx, shape, rows);
  DSV4_CHECK(at_once > 0, "experts: ", ExpertsScratchBytes(ctx, shape, 1), " bytes of scratch for a row");
  for (int64_t begin = 0; begin < rows; begin += at_once) {
    const ExpertsArgs part = at_once == rows ? a : experts::PartOf(a, begin, std::min(at_once, rows - begin));
    prompt ? ExpertsPrefillSm90(ctx, part) : experts::MultiplyGrouped(ctx, part);
  }
}

}  // namespace dsv4
