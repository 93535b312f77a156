// Goes from a step that verified draft tokens to the next step, without the host. Sequence s has R rows: its next token
// and R - 1 draft tokens. sampled[s R + j] is the token drawn from row j. Draft tokens are accepted while draw and
// draft agree:
//   a = least j with sampled[s R + j] != tokens[s R + j + 1], or R - 1
//   results[s] = a, the R tokens sampled[s R ..], the R - 1 draft tokens tokens[s R + 1 ..]
// The sequence gets the a + 1 drawn tokens: its start and positions in the step grow by a + 1, and its next token is
// the last of them. The step of one row, with which drafting begins, gets the same values. The samplers' rows grow
// num_outputs by a + 1 and count the tokens in output_count. A token that could not be drawn (negative, sample.h) is
// passed on only in `results`; the next step uses token 0 instead.
#pragma once

#include "kv/layout.h"
#include "ops/registry.h"
#include "ops/sample/sample.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct AcceptDraftsArgs {
  int64_t rows_each = 0;  // R
  Tensor sampled;         // i32 [S R] or more: one per row of the step
  // Of the step, in place; rows after S R are padding rows.
  Tensor tokens, positions;           // i32, i64 [S R] or more
  SequenceView* sequences = nullptr;  // [S]
  SampleRow* rows = nullptr;          // [S R]; a sequence's rows share output_count, or have none
  // Of the step with one row per sequence, in place.
  Tensor draft_tokens, draft_positions;     // i32, i64 [S]
  SequenceView* draft_sequences = nullptr;  // [S]
  SampleRow* draft_rows = nullptr;          // [S]
  Tensor results;                           // i32 [S, 2 R], out
};
void AcceptDrafts(const ExecContext& ctx, const AcceptDraftsArgs& args);
OpImplementations DescribeAcceptDrafts(const ExecContext& ctx);

}  // namespace dsv4
