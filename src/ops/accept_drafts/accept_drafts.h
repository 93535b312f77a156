// From a step that verified drafts to the next one without the host. Sequence s has R rows, whose tokens are its next
// one and R - 1 drafted ones; sampled[s R + j] is what was drawn from row j. Drafts count while draw and draft agree:
//   a = least j with sampled[s R + j] != tokens[s R + j + 1], or R - 1
//   results[s] = a, sampled[s R ..] of all rows, tokens[s R + 1 ..] that were drafted
// The a + 1 tokens drawn become the sequence's: its step's start and positions grow by a + 1, its next token is the
// last of them, and so it is in the step of one row that drafts begin with. Samplers' rows have drawn so many more, and
// their output counts hold them. A token that could not be drawn (negative, sample.h) is passed on in `results` alone;
// the next step takes token 0 for it.
#pragma once

#include "kv/layout.h"
#include "ops/registry.h"
#include "ops/sample/sample.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct AcceptDraftsArgs {
  int64_t rows_each = 0;  // R
  Tensor sampled;         // i32 [S R] or more, as its rows are
  // Of the step, in place; rows behind S R are idle.
  Tensor tokens, positions;           // i32, i64 [S R] or more
  SequenceView* sequences = nullptr;  // [S]
  SampleRow* rows = nullptr;          // [S R]: those of a sequence share output_count, or have none
  // Of the sequences' steps of one row, in place.
  Tensor draft_tokens, draft_positions;     // i32, i64 [S]
  SequenceView* draft_sequences = nullptr;  // [S]
  SampleRow* draft_rows = nullptr;          // [S]
  Tensor results;                           // i32 [S, 2 R], out
};
void AcceptDrafts(const ExecContext& ctx, const AcceptDraftsArgs& args);
OpImplementations DescribeAcceptDrafts(const ExecContext& ctx);

}  // namespace dsv4
