// accept_drafts for one sequence, on any device.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "ops/accept_drafts/accept_drafts.h"

namespace dsv4 {

// AcceptDraftsArgs as pointers.
struct AcceptPointers {
  explicit AcceptPointers(const AcceptDraftsArgs& a)
      : rows_each(a.rows_each),
        sampled(a.sampled.i32()),
        tokens(a.tokens.i32()),
        positions(a.positions.i64()),
        sequences(a.sequences),
        rows(a.rows),
        draft_tokens(a.draft_tokens.i32()),
        draft_positions(a.draft_positions.i64()),
        draft_sequences(a.draft_sequences),
        draft_rows(a.draft_rows),
        results(a.results.i32()) {}

  int64_t rows_each;
  const int32_t* sampled;
  int32_t* tokens;
  int64_t* positions;
  SequenceView* sequences;
  SampleRow* rows;
  int32_t* draft_tokens;
  int64_t* draft_positions;
  SequenceView* draft_sequences;
  SampleRow* draft_rows;
  int32_t* results;
};

DSV4_HOST_DEVICE void AcceptOne(const AcceptPointers& p, int64_t s) {
  const int64_t r = p.rows_each, first = s * r;
  int64_t a = 0;
  while (a + 1 < r && p.sampled[first + a] == p.tokens[first + a + 1]) ++a;
  int32_t* const out = p.results + 2 * first;
  out[0] = static_cast<int32_t>(a);
  for (int64_t j = 0; j < r; ++j) out[1 + j] = p.sampled[first + j];
  for (int64_t j = 1; j < r; ++j) out[r + j] = p.tokens[first + j];
  uint16_t* const counts = p.rows[first].output_count;
  for (int64_t j = 0; j <= a && counts != nullptr; ++j) {
    const int32_t id = p.sampled[first + j];
    if (id >= 0 && counts[id] < 65535) ++counts[id];
  }
  for (int64_t j = 0; j < r; ++j) {
    p.positions[first + j] += a + 1;
    p.rows[first + j].num_outputs += static_cast<uint64_t>(a + 1);
  }
  p.sequences[s].start += a + 1;
  const int32_t last = p.sampled[first + a];
  p.tokens[first] = p.draft_tokens[s] = last < 0 ? 0 : last;
  p.draft_positions[s] = p.positions[first];
  p.draft_sequences[s].start = p.sequences[s].start;
  p.draft_rows[s].num_outputs = p.rows[first].num_outputs;
}

}  // namespace dsv4
