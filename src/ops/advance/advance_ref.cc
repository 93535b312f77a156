#include "ops/advance/advance.h"
#include "ops/idle_row.h"

namespace dsv4 {

void AdvanceRef(const ExecContext&, const AdvanceArgs& a) {
  for (int64_t s = 0; s < a.sampled.dim(0); ++s) {
    if (a.tokens.i32()[s] == kIdleToken) continue;
    const int32_t id = a.sampled.i32()[s];
    a.tokens.i32()[s] = id;
    ++a.positions.i64()[s];
    ++a.sequences[s].start;
    if (!a.history) continue;
    int32_t& count = a.counts.i32()[s];
    if (count < a.history.dim(1)) a.history.i32()[s * a.history.dim(1) + count] = id;
    ++count;
  }
}

}  // namespace dsv4
