// Turns a step of one row per sequence into a step of B rows: the row itself, then filler tokens at the next positions.
// Row s * B + i, of sequence s at position p with token x, gets
//   tokens = i == 0 ? x : filler;  positions = p + i;  last = p + B - 1;  sequence_of = s
//   by_place[i * S + s] = s * B + i
//   blocks[s] = sequences[s] with start p and the rows [s * B, (s + 1) * B)
#pragma once

#include <cstdint>

#include "kv/layout.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct BlockRowsArgs {
  Tensor step_tokens;                       // i32 [S]
  Tensor step_positions;                    // i64 [S]
  const SequenceView* sequences = nullptr;  // [S], one row each: sequence s has row s
  int64_t block = 0;                        // B
  int32_t filler = 0;
  Tensor tokens;                   // i32 [S*B], out
  Tensor positions, last;          // i64 [S*B], out
  Tensor sequence_of, by_place;    // i32 [S*B], out
  SequenceView* blocks = nullptr;  // [S], out
};
void BlockRows(const ExecContext& ctx, const BlockRowsArgs& args);
OpImplementations DescribeBlockRows(const ExecContext& ctx);

}  // namespace dsv4
