// From a decode step to the next one without the host: every sequence takes the token that was sampled for it.
//   tokens[s] = sampled[s];  positions[s] += 1;  sequences[s].start += 1
//   history[s, counts[s]] = sampled[s], where there is room;  counts[s] += 1
// Idle rows (ops/idle_row.h) stay as they are.
#pragma once

#include "kv/layout.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct AdvanceArgs {
  Tensor sampled;                     // i32 [S]: ids, or the negative codes of sample.h, which are passed on
  Tensor tokens;                      // i32 [S], in place: what the step before took
  Tensor positions;                   // i64 [S], in place
  SequenceView* sequences = nullptr;  // [S], in place
  Tensor history;                     // i32 [S, C], or empty
  Tensor counts;                      // i32 [S], in place; with history
};
void Advance(const ExecContext& ctx, const AdvanceArgs& args);
OpImplementations DescribeAdvance(const ExecContext& ctx);

}  // namespace dsv4
