// Goes from a decode step to the next one without the host: every sequence takes the token that was sampled for it.
//   tokens[s] = sampled[s];  positions[s] += 1;  sequences[s].start += 1
//   history[s, counts[s]] = sampled[s] if counts[s] < C;  counts[s] += 1
// Padding rows (ops/idle_row.h) do not change.
#pragma once

#include "kv/layout.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct AdvanceArgs {
  Tensor sampled;                     // i32 [S]: ids, or the negative codes of sample.h, which are copied
  Tensor tokens;                      // i32 [S], in place: the tokens of the previous step
  Tensor positions;                   // i64 [S], in place
  SequenceView* sequences = nullptr;  // [S], in place
  Tensor history;                     // i32 [S, C], or empty
  Tensor counts;                      // i32 [S], in place; with history
};
void Advance(const ExecContext& ctx, const AdvanceArgs& args);
OpImplementations DescribeAdvance(const ExecContext& ctx);

}  // namespace dsv4
