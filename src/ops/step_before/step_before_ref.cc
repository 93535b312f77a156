#include <algorithm>

#include "ops/step_before/step_before.h"

namespace dsv4 {

void StepBeforeRef(const ExecContext&, const StepBeforeArgs& a) {
  for (int64_t t = 0; t < a.positions.dim(0); ++t)
    a.positions_before.i64()[t] = std::max<int64_t>(0, a.positions.i64()[t] - 1);
  for (int64_t s = 0; s < a.num_sequences; ++s) {
    SequenceView seq = a.sequences[s];
    if (seq.start > 0) {
      --seq.start;
    } else {
      ++seq.begin;
    }
    a.before[s] = seq;
  }
}

}  // namespace dsv4
