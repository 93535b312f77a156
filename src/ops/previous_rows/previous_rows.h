// Gives each token the row of the previous position. For a token at position p of its sequence:
//   y[t] = x[t - 1] if that token is of the same sequence, else ring[(p - 1) % slots]; 0 at position 0
//   ring[p % slots] = x[t], for a sequence's last `slots` tokens of the step
// The ring is in the sequence's fixed block: f32 [slots, width]. Without x the ring is not written, and every sequence
// has at most one token. Without y nothing is read. Exact.
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
  int64_t offset = 0;  // bytes of the ring in the fixed block
  int64_t slots = 0;
};
void PreviousRows(const ExecContext& ctx, const PreviousRowsArgs& args);
OpImplementations DescribePreviousRows(const ExecContext& ctx);

}  // namespace dsv4
