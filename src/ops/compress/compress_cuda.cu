#include "device/launch.cuh"
#include "kv/row_codec.cuh"
#include "ops/block_reduce.cuh"
#include "ops/compress/compress.h"
#include "ops/round_index_query/hadamard.cuh"

namespace dsv4 {

namespace {

constexpr int kThreads = 256;

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

// The pooled channel of a window: slots [first, end) in order of position; gate(p) and value(p) read one slot.
template <typename Gate, typename Value>
__device__ __forceinline__ float Pool(int64_t first, int64_t end, const Gate& gate, const Value& value) {
  float largest = -INFINITY;
#pragma unroll 8
  for (int64_t p = first; p < end; ++p) largest = fmaxf(largest, gate(p));
  float sum = 0, weighted = 0;
#pragma unroll 8
  for (int64_t p = first; p < end; ++p) {
    const float e = expf(__fsub_rn(gate(p), largest));
    sum = __fadd_rn(sum, e);
    weighted = __fmaf_rn(e, value(p), weighted);
  }
  return __fdiv_rn(weighted, sum);
}

// Emits the row that ends at `position`, a boundary, by the whole block. gate_at(p, channel), value_at(p, channel).
template <typename Gate, typename Value>
__device__ __forceinline__ void EmitRow(const Params& a, const SequenceView& seq, int64_t position, float* pooled, const Gate& gate_at,
                                        const Value& value_at) {
  const CompressorLayout& c = a.c;
  const int64_t m = c.ratio, d = c.dim, width = c.overlap * d, row = position / m;
  const int64_t first = max(int64_t{0}, (row - (c.overlap - 1)) * m);
  float square = 0;
  for (int64_t i = threadIdx.x; i < d; i += kThreads) {
    // Slots before the last window use the first d channels (series Ca), the last window the last d (series Cb).
    const auto channel = [&](int64_t p) { return p < row * m ? i : width - d + i; };
    const float e = Pool(
        first, position + 1, [&](int64_t p) { return gate_at(p, channel(p)); }, [&](int64_t p) { return value_at(p, channel(p)); });
    pooled[i] = e;
    square = __fmaf_rn(e, e, square);
  }
  square = BlockSum<kThreads>(square);
  const float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(square, static_cast<float>(d)), a.norm_eps)));
  for (int64_t i = threadIdx.x; i < d; i += kThreads) pooled[i] = __fmul_rn(__fmul_rn(pooled[i], scale), a.norm[i]);
  __syncthreads();
  for (int i = threadIdx.x; i < a.pairs; i += kThreads) {
    float* at = pooled + d - 2 * a.pairs + 2 * i;
    const float angle = __fmul_rn(static_cast<float>(row * m), a.frequencies[i]);
    double sine, cosine;
    sincos(static_cast<double>(angle), &sine, &cosine);
    const float co = static_cast<float>(cosine), si = static_cast<float>(sine), even = at[0], odd = at[1];
    at[0] = __fsub_rn(__fmul_rn(even, co), __fmul_rn(odd, si));
    at[1] = __fadd_rn(__fmul_rn(even, si), __fmul_rn(odd, co));
  }
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (a.hadamard) {
    if (warp == 0) gpu::HadamardWarp(pooled, static_cast<int>(d), lane);
    __syncthreads();
  }
  const gpu::RowPointer to = gpu::EmittedRowAt(c, seq, row);
  gpu::EncodeRowWarp(c.row, pooled, to.data, to.scale, lane, warp, kThreads / 32);
  __syncthreads();  // `pooled` may be used again
}

// One block a sequence, tokens in order: into the state first, then out of it. Made for one token a sequence.
__global__ void __launch_bounds__(kThreads) CompressStepKernel(const __grid_constant__ Params a) {
  extern __shared__ float pooled[];
  AllowNext();
  WaitForPrevious();
  const SequenceView& seq = a.sequences[blockIdx.x];
  const int64_t m = a.c.ratio, width = a.c.overlap * a.c.dim;
  for (int64_t t = seq.begin; t < seq.end; ++t) {
    const int64_t position = a.positions[t];
    float* state = gpu::StateRowAt(a.c, seq, position);
    const float* bias = a.slot_bias + position % m * width;
    for (int64_t i = threadIdx.x; i < width; i += kThreads) {
      const float gate = __fadd_rn(a.gates[t * width + i], bias[i]);
      a.gates[t * width + i] = gate;
      state[i] = a.values[t * width + i];
      state[width + i] = gate;
    }
    if ((position + 1) % m != 0) continue;
    __syncthreads();
    const float* base = reinterpret_cast<const float*>(seq.fixed + a.c.state_offset);
    const uint32_t slots = static_cast<uint32_t>(a.c.overlap * a.c.ratio);
    const auto slot = [&](int64_t p) { return base + static_cast<int64_t>(static_cast<uint32_t>(p) % slots) * 2 * width; };
    EmitRow(
        a, seq, position, pooled, [&](int64_t p, int64_t i) { return slot(p)[width + i]; },
        [&](int64_t p, int64_t i) { return slot(p)[i]; });
  }
}

// One block a token of the step; only those at a boundary emit. Gates of the step are read without their bias, which
// the next kernel adds.
__global__ void __launch_bounds__(kThreads) CompressEmitKernel(const __grid_constant__ Params a) {
  extern __shared__ float pooled[];
  AllowNext();
  WaitForPrevious();
  const int64_t t = blockIdx.x, position = a.positions[t], m = a.c.ratio, width = a.c.overlap * a.c.dim;
  if ((position + 1) % m != 0) return;
  const SequenceView& seq = a.sequences[a.sequence_of[t]];
  const float* base = reinterpret_cast<const float*>(seq.fixed + a.c.state_offset);
  const uint32_t slots = static_cast<uint32_t>(a.c.overlap * a.c.ratio), ratio = static_cast<uint32_t>(m);
  const auto slot = [&](int64_t p) { return base + static_cast<int64_t>(static_cast<uint32_t>(p) % slots) * 2 * width; };
  EmitRow(
      a, seq, position, pooled,
      [&](int64_t p, int64_t i) {
        if (p < seq.start) return slot(p)[width + i];
        return __fadd_rn(a.gates[(seq.begin + p - seq.start) * width + i],
                         a.slot_bias[static_cast<int64_t>(static_cast<uint32_t>(p) % ratio) * width + i]);
      },
      [&](int64_t p, int64_t i) { return p < seq.start ? slot(p)[i] : a.values[(seq.begin + p - seq.start) * width + i]; });
}

// One block a token: its gates get their bias, and the last tokens of a sequence go into its state.
__global__ void __launch_bounds__(kThreads) CompressKeepKernel(const __grid_constant__ Params a) {
  AllowNext();
  WaitForPrevious();
  const int64_t t = blockIdx.x, position = a.positions[t], width = a.c.overlap * a.c.dim;
  const SequenceView& seq = a.sequences[a.sequence_of[t]];
  const bool keep = t >= seq.end - a.c.overlap * a.c.ratio;
  float* state = gpu::StateRowAt(a.c, seq, position);
  const float* bias = a.slot_bias + position % a.c.ratio * width;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
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
  const size_t shared = static_cast<size_t>(a.layout->dim) * sizeof(float);
  if (a.cache.num_tokens == a.cache.num_sequences) {
    Launch(ctx, CompressStepKernel, dim3(t), dim3(kThreads), shared, p);
  } else {
    Launch(ctx, CompressEmitKernel, dim3(t), dim3(kThreads), shared, p);
    Launch(ctx, CompressKeepKernel, dim3(t), dim3(kThreads), 0, p);
  }
}

}  // namespace dsv4
