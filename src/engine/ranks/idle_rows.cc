#include "engine/ranks/idle_rows.h"

#include <algorithm>
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
  if (!fixed_.AllocateOnce(device_, fixed_bytes_)) throw std::bad_alloc();
}

IdleRows::Size IdleRows::SizeOf(const Step& step) {
  const auto sequences = static_cast<int64_t>(step.sequences.size());
  const int64_t rows = StepRows(step.num_tokens()), idle = rows - step.num_tokens();
  return {sequences + (sequences == step.num_tokens() ? idle : std::min<int64_t>(idle, 1)), rows};
}

const Step& IdleRows::Fill(const Step& step) {
  const Size size = SizeOf(step);
  if (size.rows == step.num_tokens()) return step;
  Reserve();
  filled_ = step;
  for (int64_t row = step.num_tokens(); row < size.rows; ++row) {
    if (static_cast<int64_t>(filled_.sequences.size()) < size.sequences)
      filled_.sequences.push_back({.start = 0, .begin = row, .end = row, .fixed = fixed_.data()});
    filled_.sequences.back().end = row + 1;
    filled_.tokens.push_back(kIdleToken);
    filled_.positions.push_back(0);
    filled_.sequence_of.push_back(static_cast<int32_t>(filled_.sequences.size()) - 1);
    filled_.logit_rows.push_back(static_cast<int32_t>(row));
  }
  return filled_;
}

}  // namespace dsv4
