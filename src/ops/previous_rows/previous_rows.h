// Rows that belong to the position before: for a token at position p of its sequence
//   y[t] = x[t - 1] where that is a token of the sequence in this step, else ring[(p - 1) % slots]; 0 at position 0
//   ring[p % slots] = x[t], of a sequence's last `slots` tokens
// The ring lies in the sequence's fixed block: f32 [slots, width]. Without x nothing is kept, and no sequence has more
// than one token; without y nothing is read. Exact.
#pragma once

#include "kv/layout.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct PreviousRowsArgs {
  Tensor x;                                 // f32 [T, ...], or empty
  Tensor y;                                 // f32 [T, ...]; may be x; or empty
  const SequenceView* sequences = nullptr;  // [S]
  int64_t num_sequences = 0;
  int64_t offset = 0;  // of the ring, in the fixed block
  int64_t slots = 0;
};
void PreviousRows(const ExecContext& ctx, const PreviousRowsArgs& args);
OpImplementations DescribePreviousRows(const ExecContext& ctx);

}  // namespace dsv4
