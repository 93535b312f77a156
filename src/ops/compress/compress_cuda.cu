#include "device/launch.cuh"
#include "kv/row_codec.cuh"
#include "ops/block_reduce.cuh"
#include "ops/compress/compress.h"
#include "ops/round_index_query/hadamard.cuh"

namespace dsv4 {

namespace {

constexpr int kPromptThreads = 256;
constexpr int kStepThreads = 1024;  // a step has few rows to emit: one block must keep many loads in flight
constexpr int kGroup = 16;          // slots that one thread pools

struct Params {
  float* values;
  float* gates;
  const float* slot_bias;
  const float* norm;
  const float* frequencies;
  int pairs;
  float norm_eps;
  bool hadamard;
  CompressorLayout c;
  const SequenceView* sequences;
  const int32_t* sequence_of;
  const int64_t* positions;
};

// Floats of shared memory: the pooled row, then maximum, sum and weighted sum of every group of slots.
int64_t SharedFloats(const CompressorLayout& c) {
  return c.dim * (1 + 3 * ((c.num_slots() + kGroup - 1) / kGroup));
}

// Emits the row that ends at `position`, a boundary, by the whole block: gate_at(slot, channel), value_at(slot, channel)
// read the window's tokens, slot 0 first. Sums are made per group of 16 slots, in order, then over groups in order: the same for every number of threads.
template <int kThreads, typename Gate, typename Value>
__device__ __forceinline__ void EmitRow(const Params& a, const SequenceView& seq, int64_t position, float* pooled, const Gate& gate_at,
                                        const Value& value_at) {
  const CompressorLayout& c = a.c;
  const int m = static_cast<int>(c.ratio), d = static_cast<int>(c.dim), width = static_cast<int>(c.overlap) * d;
  const int slots = static_cast<int>(c.overlap) * m, groups = (slots + kGroup - 1) / kGroup;
  const int64_t row = position / m, first = position + 1 - slots;
  float* group_max = pooled + d;
  float* group_sum = group_max + groups * d;
  float* group_weighted = group_sum + groups * d;
  for (int task = threadIdx.x; task < groups * d; task += kThreads) {
    const int group = task / d, i = task - group * d;
    float gate[kGroup], value[kGroup], largest = -INFINITY;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const int slot = group * kGroup + j;
      // Slots before the last window use the first d channels (series Ca), the last window the last d (series Cb).
      const int channel = slot < slots - m ? i : width - d + i;
      const bool there = slot < slots && first + slot >= 0;
      gate[j] = there ? gate_at(slot, channel) : -INFINITY;
      value[j] = there ? value_at(slot, channel) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kGroup; ++j) largest = fmaxf(largest, gate[j]);
    float sum = 0, weighted = 0;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const float e = gate[j] == -INFINITY ? 0.0f : expf(__fsub_rn(gate[j], largest));
      sum = __fadd_rn(sum, e);
      weighted = __fmaf_rn(e, value[j], weighted);
    }
    group_max[task] = largest;
    group_sum[task] = sum;
    group_weighted[task] = weighted;
  }
  float sine = 0, cosine = 1;  // of pair threadIdx.x
  if (static_cast<int>(threadIdx.x) < a.pairs) {
    const float angle = __fmul_rn(static_cast<float>(row * m), a.frequencies[threadIdx.x]);
    double s, co;
    sincos(static_cast<double>(angle), &s, &co);
    sine = static_cast<float>(s), cosine = static_cast<float>(co);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < d; i += kThreads) {
    float largest = group_max[i];
    for (int g = 1; g < groups; ++g) largest = fmaxf(largest, group_max[g * d + i]);
    float sum = 0, weighted = 0;
    for (int g = 0; g < groups; ++g) {
      const float of_group = group_max[g * d + i];
      const float e = of_group == -INFINITY ? 0.0f : expf(__fsub_rn(of_group, largest));
      sum = __fmaf_rn(e, group_sum[g * d + i], sum);
      weighted = __fmaf_rn(e, group_weighted[g * d + i], weighted);
    }
    pooled[i] = __fdiv_rn(weighted, sum);
  }
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float square = 0;  // every warp sums for itself
  for (int i = lane; i < d; i += 32) square = __fmaf_rn(pooled[i], pooled[i], square);
  square = WarpSum(square);
  const float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(square, static_cast<float>(d)), a.norm_eps)));
  __syncthreads();
  const int plain = d - 2 * a.pairs;
  for (int i = threadIdx.x; i < plain; i += kThreads) pooled[i] = __fmul_rn(__fmul_rn(pooled[i], scale), a.norm[i]);
  if (static_cast<int>(threadIdx.x) < a.pairs) {
    const int at = plain + 2 * threadIdx.x;
    const float even = __fmul_rn(__fmul_rn(pooled[at], scale), a.norm[at]), odd = __fmul_rn(__fmul_rn(pooled[at + 1], scale), a.norm[at + 1]);
    pooled[at] = __fsub_rn(__fmul_rn(even, cosine), __fmul_rn(odd, sine));
    pooled[at + 1] = __fadd_rn(__fmul_rn(even, sine), __fmul_rn(odd, cosine));
  }
  __syncthreads();
  if (a.hadamard) {
    if (warp == 0) gpu::HadamardWarp(pooled, d, lane);
    __syncthreads();
  }
  const gpu::RowPointer to = gpu::EmittedRowAt(c, seq, row);
  gpu::EncodeRowWarp(c.row, pooled, to.data, to.scale, lane, warp, kThreads / 32);
  __syncthreads();  // `pooled` may be used again
}

// State rows of the tokens of the window that ends at `position`, oldest first.
struct StateSlots {
  const float* base;
  int first, slots, stride;

  __device__ __forceinline__ StateSlots(const CompressorLayout& c, const SequenceView& seq, int64_t position)
      : base(reinterpret_cast<const float*>(seq.fixed + c.state_offset)),
        first(static_cast<int>((position + 1) % (c.overlap * c.ratio))),
        slots(static_cast<int>(c.overlap * c.ratio)),
        stride(static_cast<int>(2 * c.overlap * c.dim)) {}
  __device__ __forceinline__ const float* operator[](int slot) const {
    const int at = first + slot;
    return base + (at < slots ? at : at - slots) * stride;
  }
};

// One block a sequence, tokens in order: into the state first, then out of it. Made for one token a sequence.
__global__ void __launch_bounds__(kStepThreads) CompressStepKernel(const __grid_constant__ Params a) {
  extern __shared__ float pooled[];
  AllowNext();
  WaitForPrevious();
  const SequenceView& seq = a.sequences[blockIdx.x];
  const int64_t m = a.c.ratio, width = a.c.overlap * a.c.dim;
  for (int64_t t = seq.begin; t < seq.end; ++t) {
    const int64_t position = a.positions[t];
    float* state = gpu::StateRowAt(a.c, seq, position);
    const float* bias = a.slot_bias + position % m * width;
    for (int64_t i = threadIdx.x; i < width; i += kStepThreads) {
      const float gate = __fadd_rn(a.gates[t * width + i], bias[i]);
      a.gates[t * width + i] = gate;
      state[i] = a.values[t * width + i];
      state[width + i] = gate;
    }
    if ((position + 1) % m != 0) continue;
    __syncthreads();
    const StateSlots kept(a.c, seq, position);
    EmitRow<kStepThreads>(
        a, seq, position, pooled, [&](int slot, int i) { return kept[slot][width + i]; }, [&](int slot, int i) { return kept[slot][i]; });
  }
}

// One block a token of the step; only those at a boundary emit. Gates of the step are read without their bias, which
// the next kernel adds.
__global__ void __launch_bounds__(kPromptThreads) CompressEmitKernel(const __grid_constant__ Params a) {
  extern __shared__ float pooled[];
  AllowNext();
  WaitForPrevious();
  const int64_t t = blockIdx.x, position = a.positions[t], m = a.c.ratio, width = a.c.overlap * a.c.dim;
  if ((position + 1) % m != 0) return;
  const SequenceView& seq = a.sequences[a.sequence_of[t]];
  const StateSlots kept(a.c, seq, position);
  const int old = static_cast<int>(max(int64_t{0}, seq.start - (position + 1 - a.c.overlap * m)));  // slots before this step
  const int ratio = static_cast<int>(m);
  const int64_t before = (t + 1 - a.c.overlap * m) * width;
  EmitRow<kPromptThreads>(
      a, seq, position, pooled,
      [&](int slot, int i) {
        if (slot < old) return kept[slot][width + i];
        return __fadd_rn(a.gates[before + slot * width + i], a.slot_bias[(slot < ratio ? slot : slot - ratio) * width + i]);
      },
      [&](int slot, int i) { return slot < old ? kept[slot][i] : a.values[before + slot * width + i]; });
}

// One block a token: its gates get their bias, and the last tokens of a sequence go into its state.
__global__ void __launch_bounds__(kPromptThreads) CompressKeepKernel(const __grid_constant__ Params a) {
  AllowNext();
  WaitForPrevious();
  const int64_t t = blockIdx.x, position = a.positions[t], width = a.c.overlap * a.c.dim;
  const SequenceView& seq = a.sequences[a.sequence_of[t]];
  const bool keep = t >= seq.end - a.c.overlap * a.c.ratio;
  float* state = gpu::StateRowAt(a.c, seq, position);
  const float* bias = a.slot_bias + position % a.c.ratio * width;
  for (int64_t i = threadIdx.x; i < width; i += kPromptThreads) {
    const float gate = __fadd_rn(a.gates[t * width + i], bias[i]);
    a.gates[t * width + i] = gate;
    if (!keep) continue;
    state[i] = a.values[t * width + i];
    state[width + i] = gate;
  }
}

}  // namespace

void CompressCuda(const ExecContext& ctx, const CompressArgs& a) {
  const Params p = {.values = a.values.f32(),
                    .gates = a.gates.f32(),
                    .slot_bias = a.slot_bias.f32(),
                    .norm = a.norm.f32(),
                    .frequencies = a.frequencies.f32(),
                    .pairs = static_cast<int>(a.frequencies.dim(0)),
                    .norm_eps = a.norm_eps,
                    .hadamard = a.hadamard,
                    .c = *a.layout,
                    .sequences = a.cache.sequences,
                    .sequence_of = a.cache.sequence_of,
                    .positions = a.cache.positions};
  const unsigned t = static_cast<unsigned>(a.cache.num_tokens);
  const size_t shared = static_cast<size_t>(SharedFloats(*a.layout)) * sizeof(float);
  DSV4_CHECK(p.pairs <= kPromptThreads);
  if (a.cache.num_tokens == a.cache.num_sequences) {
    Launch(ctx, CompressStepKernel, dim3(t), dim3(kStepThreads), shared, p);
  } else {
    Launch(ctx, CompressEmitKernel, dim3(t), dim3(kPromptThreads), shared, p);
    Launch(ctx, CompressKeepKernel, dim3(t), dim3(kPromptThreads), 0, p);
  }
}

}  // namespace dsv4
