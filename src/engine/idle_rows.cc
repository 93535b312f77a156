#include "engine/idle_rows.h"

#include <new>

#include "ops/idle_row.h"
#include "ops/sample/sample.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

static_assert(kIdleToken != kSampleNan && kIdleToken != kSampleNothing && kIdleToken != kSampleBanned);

int64_t StepRows(int64_t rows) {
  if (rows <= 8) return rows;
  const int64_t together = rows <= 64 ? 4 : 8;
  return CeilDiv(rows, together) * together;
}

void IdleRows::Reserve() {
  if (fixed_.data() == nullptr && !fixed_.Allocate(device_, fixed_bytes_)) throw std::bad_alloc();
}

const Step& IdleRows::Fill(const Step& step) {
  const int64_t live = step.num_tokens(), rows = StepRows(live);
  if (rows == live) return step;
  Reserve();
  filled_ = step;
  for (int64_t row = live; row < rows; ++row) {
    filled_.tokens.push_back(kIdleToken);
    filled_.positions.push_back(0);
    filled_.sequence_of.push_back(static_cast<int32_t>(row));
    filled_.sequences.push_back({.start = 0, .begin = row, .end = row + 1, .fixed = fixed_.data()});
    filled_.logit_rows.push_back(static_cast<int32_t>(row));
  }
  return filled_;
}

}  // namespace dsv4
