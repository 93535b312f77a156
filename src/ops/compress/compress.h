// The compressor (docs/dev/model.md): pools every m tokens into one row, and appends it to the cache.
//   g[t] += slot_bias[position % m]
//   at every boundary position p, (p+1) % m == 0, row w = p / m, channel i of d, in float32:
//     m without overlap (coff = 1): slots are the m tokens of window w;               value c[., i],   gate g[., i]
//     with overlap (coff = 2): the m tokens of window w-1, then the m tokens of window w; the first take channel i
//       (series Ca), the second channel d + i (series Cb); before the sequence's start a gate is -inf
//     e[i] = sum_slots softmax_slots(gate) * value
//   row = Rope(RmsNorm(e; norm), position m*w), `hadamard` then rotates it (index keys in FP4), and the row format
//   rounds it. Sums run over slots in order of position, so a row's bits do not depend on how the prompt was cut.
// Afterwards the last num_slots tokens' (value, gate) rows are kept in the state.
#pragma once

#include "kv/layout.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

inline constexpr int64_t kMaxRopeDimOnGpu = 512;

struct CompressArgs {
  Tensor values;     // f32 [T, coff*d]: kv_proj of the step's tokens
  Tensor gates;      // f32 [T, coff*d]: gate_proj; the slot bias is added in place
  Tensor slot_bias;  // f32 [m, coff*d]
  Tensor norm;       // f32 [d]
  float norm_eps = 0;
  Tensor frequencies;  // f32 [Dr/2] of the layer
  bool hadamard = false;
  CacheView cache;
  const CompressorLayout* layout = nullptr;  // cache.layer's main or index
};
void Compress(const ExecContext& ctx, const CompressArgs& args);
// What runs on this device, for steps of one token of each sequence or of more.
std::string CompressImplementation(const ExecContext& ctx, bool one_each);
OpImplementations DescribeCompress(const ExecContext& ctx);

}  // namespace dsv4
