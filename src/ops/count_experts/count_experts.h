// Counts which experts a pass has chosen, for several layers at once:
//   chosen[l, e] += the number of tokens t and choices a with experts[l, t, a] = e;  passes[l, e] += 1 if that is not 0
// Numbers outside [0, E) (the shared expert's, kNoExpert) do not count.
#pragma once

#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct CountExpertsArgs {
  const int32_t* experts = nullptr;  // [L, T, A]: the T * A of a layer are contiguous
  int64_t layer_stride = 0;          // int32s from one layer's first number to the next layer's
  int64_t num_ids = 0;               // T * A
  Tensor chosen;                     // i64 [L, E], in place
  Tensor passes;                     // i64 [L, E], in place; empty: not counted
};
inline constexpr int64_t kMaxCountedOnGpu = 1024;  // E
void CountExperts(const ExecContext& ctx, const CountExpertsArgs& args);
OpImplementations DescribeCountExperts(const ExecContext& ctx);

}  // namespace dsv4
