// The compressor (docs/dev/model.md): pools every m tokens into one row and appends the row to the cache.
//   g[t] += slot_bias[position % m]
//   at every boundary position p, (p+1) % m == 0, row w = p / m, channel i of d, in float32:
//     without overlap (coff = 1): m slots, the tokens of window w;                    value c[., i],   gate g[., i]
//     with overlap (coff = 2): 2m slots, the tokens of windows w-1 and w. Slots of window w-1 use channel i (Ca), slots
//       of window w use channel d + i (Cb). Before the sequence's start a gate is -inf
//     e[i] = sum_slots softmax_slots(gate) * value
//   row = Rope(RmsNorm(e; norm), position m*w), rotated if `hadamard` (index keys in FP4), rounded by the row format
// Sums run over slots in order of position, so a row's bits do not depend on how the prompt was divided into chunks.
// Afterwards the state holds the (value, gate) rows of the last num_slots tokens.
#pragma once

#include "kv/layout.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

inline constexpr int64_t kMaxRopeDimOnGpu = 512;

struct CompressArgs {
  Tensor values;     // f32 [T, coff*d]: kv_proj of the step's tokens
  Tensor gates;      // f32 [T, coff*d]: gate_proj; the op adds the slot bias in place
  Tensor slot_bias;  // f32 [m, coff*d]
  Tensor norm;       // f32 [d]
  float norm_eps = 0;
  Tensor frequencies;  // f32 [Dr/2] of the layer
  bool hadamard = false;
  CacheView cache;
  const CompressorLayout* layout = nullptr;  // cache.layer's main or index
};
void Compress(const ExecContext& ctx, const CompressArgs& args);
// Names the implementation on this device. `one_each`: the step has one token per sequence.
std::string CompressImplementation(const ExecContext& ctx, bool one_each);
OpImplementations DescribeCompress(const ExecContext& ctx);

}  // namespace dsv4
