// The step whose rows are one position earlier, for layers that read each token together with the previous position:
//   positions_before[t] = max(0, positions[t] - 1)
//   before[s] = sequences[s] with start - 1, or, if start is 0, with begin + 1: its first row has no previous position
#pragma once

#include "kv/layout.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct StepBeforeArgs {
  Tensor positions;                         // i64 [T]
  const SequenceView* sequences = nullptr;  // [S]
  int64_t num_sequences = 0;
  Tensor positions_before;         // i64 [T], out
  SequenceView* before = nullptr;  // [S], out
};
void StepBefore(const ExecContext& ctx, const StepBeforeArgs& args);
OpImplementations DescribeStepBefore(const ExecContext& ctx);

}  // namespace dsv4
