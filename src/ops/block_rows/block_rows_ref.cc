#include "ops/block_rows/block_rows.h"

namespace dsv4 {

void BlockRowsRef(const ExecContext&, const BlockRowsArgs& a) {
  const int64_t num_sequences = a.step_tokens.dim(0), b = a.block;
  for (int64_t s = 0; s < num_sequences; ++s) {
    const int64_t position = a.step_positions.i64()[s];
    for (int64_t i = 0; i < b; ++i) {
      const int64_t row = s * b + i;
      a.tokens.i32()[row] = i == 0 ? a.step_tokens.i32()[s] : a.filler;
      a.positions.i64()[row] = position + i;
      a.last.i64()[row] = position + b - 1;
      a.sequence_of.i32()[row] = static_cast<int32_t>(s);
      a.by_place.i32()[i * num_sequences + s] = static_cast<int32_t>(row);
    }
    SequenceView seq = a.sequences[s];
    seq.start = position, seq.begin = s * b, seq.end = (s + 1) * b;
    a.blocks[s] = seq;
  }
}

}  // namespace dsv4
