// The compressor on the device, shared by the kernels of compress and q_prepare.
#pragma once

#include "device/launch.cuh"
#include "kv/row_codec.cuh"
#include "ops/block_reduce.cuh"
#include "ops/compress/compress.h"
#include "ops/round_index_query/hadamard.cuh"

namespace dsv4::compress {

constexpr int kGroup = 16;  // slots that one thread pools

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
inline int64_t SharedFloats(const CompressorLayout& c) {
  return c.dim * (1 + 3 * ((c.inputs() + kGroup - 1) / kGroup));
}

// Cosine and sine of pair threadIdx.x for the row that ends at `position`. Slow: in double precision.
__device__ __forceinline__ float2 AngleOfRow(const Params& a, int64_t position) {
  if (static_cast<int>(threadIdx.x) >= a.pairs) return make_float2(1, 0);
  const int64_t start = gpu::RowOf(position, a.c.ratio) * a.c.ratio;
  const float angle = __fmul_rn(static_cast<float>(start), a.frequencies[threadIdx.x]);
  double sine, cosine;
  sincos(static_cast<double>(angle), &sine, &cosine);
  return make_float2(static_cast<float>(cosine), static_cast<float>(sine));
}

// Multiplies the row's d channels by `scale` and the norm's weights, and rotates the last ones by `angle`, one pair per
// thread.
template <int kThreads>
__device__ __forceinline__ void NormAndTurn(const Params& a, float* row, int d, float scale, float2 angle) {
  const int plain = d - 2 * a.pairs;
  for (int i = threadIdx.x; i < plain; i += kThreads) row[i] = __fmul_rn(__fmul_rn(row[i], scale), a.norm[i]);
  if (static_cast<int>(threadIdx.x) < a.pairs) {
    const int at = plain + 2 * threadIdx.x;
    const float even = __fmul_rn(__fmul_rn(row[at], scale), a.norm[at]),
                odd = __fmul_rn(__fmul_rn(row[at + 1], scale), a.norm[at + 1]);
    row[at] = __fsub_rn(__fmul_rn(even, angle.x), __fmul_rn(odd, angle.y));
    row[at + 1] = __fadd_rn(__fmul_rn(even, angle.y), __fmul_rn(odd, angle.x));
  }
}

// Emits the row that ends at `position`, a boundary; called by the whole block. gate_at(slot, channel) and
// value_at(slot, channel) read the window's tokens, slot 0 first. Sums run over groups of 16 slots, in order within and
// between groups: the same for every number of threads.
template <int kThreads, typename Gate, typename Value>
__device__ __forceinline__ void EmitRow(const Params& a, const SequenceView& seq, int64_t position, float2 angle,
                                        float* pooled, const Gate& gate_at, const Value& value_at) {
  const CompressorLayout& c = a.c;
  const int m = static_cast<int>(c.ratio), d = static_cast<int>(c.dim), width = static_cast<int>(c.overlap) * d;
  const int slots = static_cast<int>(c.overlap) * m, groups = (slots + kGroup - 1) / kGroup;
  const int64_t row = gpu::RowOf(position, m), first = position + 1 - slots;
  float* group_max = pooled + d;
  float* group_sum = group_max + groups * d;
  float* group_weighted = group_sum + groups * d;
  for (int task = threadIdx.x; task < groups * d; task += kThreads) {
    const int group = task / d, i = task - group * d;
    float gate[kGroup], value[kGroup], largest = -INFINITY;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const int slot = group * kGroup + j;
      // Slots before the last window use the first d channels (series Ca), slots of the last window the last d (series
      // Cb).
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
  float square = 0;  // every warp computes the whole sum
  for (int i = lane; i < d; i += 32) square = __fmaf_rn(pooled[i], pooled[i], square);
  square = WarpSum(square);
  const float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(square, static_cast<float>(d)), a.norm_eps)));
  __syncthreads();
  NormAndTurn<kThreads>(a, pooled, d, scale, angle);
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
        first(static_cast<int>(gpu::SlotOf(position + 1 - c.overlap * c.ratio + c.num_slots, c.num_slots))),
        slots(static_cast<int>(c.num_slots)),
        stride(static_cast<int>(2 * c.overlap * c.dim)) {}
  __device__ __forceinline__ const float* operator[](int slot) const {
    const int at = first + slot;
    return base + (at < slots ? at : at - slots) * stride;
  }
};

// A block's data about a sequence's tokens before their values and gates are available.
constexpr int kAtOnce = 4, kAtOnceOfSeveral = 8;  // channels of a thread whose loads come before the stores
template <int kThreads>
struct FirstToken {
  SequenceView seq;
  int count;                   // number of positions: padding rows share one
  int64_t position, boundary;  // of the first token; the first that ends a row, maybe after the step
  float bias[kAtOnce];         // of the first token
  float2 angle;                // of the row that ends at `boundary`, if it is in the step

  __device__ __forceinline__ FirstToken(const Params& a, int sequence)
      : seq(a.sequences[sequence]), count(0), position(0), boundary(0), bias{}, angle{} {
    if (seq.begin >= seq.end) return;
    position = a.positions[seq.begin];
    count = static_cast<int>(a.positions[seq.end - 1] - position) + 1;
    const int64_t width = a.c.overlap * a.c.dim, slot = gpu::SlotOf(position, a.c.ratio);
    boundary = position + a.c.ratio - 1 - slot;
    const float* from = a.slot_bias + slot * width;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t i = static_cast<int>(threadIdx.x) + j * kThreads;
      if (i < width) bias[j] = from[i];
    }
    if (boundary - position < count) angle = AngleOfRow(a, boundary);
  }
};

// Stores the only token of a sequence in the state.
template <int kThreads>
__device__ __forceinline__ void KeepOne(const Params& a, const FirstToken<kThreads>& known) {
  const int64_t width = a.c.overlap * a.c.dim, t = known.seq.begin;
  float* state = gpu::StateRowAt(a.c, known.seq, known.position);
  const float* bias = a.slot_bias + gpu::SlotOf(known.position, a.c.ratio) * width;
  for (int64_t first = threadIdx.x; first < width; first += kAtOnce * kThreads) {
    float value[kAtOnce], gate[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t i = first + j * kThreads;
      if (i >= width) continue;
      value[j] = a.values[t * width + i];
      gate[j] = __fadd_rn(a.gates[t * width + i], first < kThreads ? known.bias[j] : bias[i]);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t i = first + j * kThreads;
      if (i >= width) break;
      a.gates[t * width + i] = gate[j];
      state[i] = value[j];
      state[width + i] = gate[j];
    }
  }
}

// Stores all tokens of a sequence: at most one plus the spare slots of the ring. So no token overwrites a row that the
// step pools.
template <int kThreads>
__device__ __forceinline__ void KeepSeveral(const Params& a, const FirstToken<kThreads>& known) {
  const int width = static_cast<int>(a.c.overlap * a.c.dim), count = known.count;
  const int ratio = static_cast<int>(a.c.ratio), slots = static_cast<int>(a.c.num_slots);
  const int first_slot = static_cast<int>(gpu::SlotOf(known.position, a.c.ratio)),
            first_row = static_cast<int>(gpu::SlotOf(known.position, a.c.num_slots));
  float* const state = reinterpret_cast<float*>(known.seq.fixed + a.c.state_offset);
  const int64_t begin = int64_t{known.seq.begin} * width;
  int token = 0, channel = static_cast<int>(threadIdx.x), slot = first_slot;
  while (true) {
    float value[kAtOnceOfSeveral], gate[kAtOnceOfSeveral];
    int tokens[kAtOnceOfSeveral], channels[kAtOnceOfSeveral];
#pragma unroll
    for (int j = 0; j < kAtOnceOfSeveral; ++j) {
      while (channel >= width && token < count) channel -= width, ++token, slot = slot + 1 == ratio ? 0 : slot + 1;
      tokens[j] = token, channels[j] = channel;
      channel += kThreads;
      if (tokens[j] >= count) continue;
      const int64_t at = begin + tokens[j] * width + channels[j];
      value[j] = a.values[at];
      gate[j] = __fadd_rn(a.gates[at], a.slot_bias[slot * width + channels[j]]);
    }
#pragma unroll
    for (int j = 0; j < kAtOnceOfSeveral; ++j) {
      if (tokens[j] >= count) return;
      a.gates[begin + tokens[j] * width + channels[j]] = gate[j];
      const int row = first_row + tokens[j];
      float* to = state + int64_t{row < slots ? row : row - slots} * 2 * width + channels[j];
      to[0] = value[j];
      to[width] = gate[j];
    }
  }
}

// Processes the tokens of a sequence by a block: stores them in the state, then emits from the state the rows that end
// among them, in order. The tokens have consecutive positions, except padding rows, which all have position 0: one of
// them is enough. kOne: the sequence has one token.
template <int kThreads, bool kOne = false>
__device__ __forceinline__ void CompressStep(const Params& a, const FirstToken<kThreads>& known, float* pooled) {
  const SequenceView& seq = known.seq;
  const int64_t count = kOne ? 1 : known.count, width = a.c.overlap * a.c.dim;
  if (count <= 0) return;
  if (kOne || count == 1) {
    KeepOne(a, known);
  } else {
    KeepSeveral(a, known);
  }
  for (int64_t end = known.boundary; end < known.position + count; end += a.c.ratio) {
    __syncthreads();
    const StateSlots kept(a.c, seq, end);
    EmitRow<kThreads>(
        a, seq, end, end == known.boundary ? known.angle : AngleOfRow(a, end), pooled,
        [&](int slot, int i) { return kept[slot][width + i]; }, [&](int slot, int i) { return kept[slot][i]; });
  }
}

inline Params MakeParams(const CompressArgs& a) {
  return {.values = a.values.f32(),
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
}

}  // namespace dsv4::compress
