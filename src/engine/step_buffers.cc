#include "engine/step_buffers.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {
constexpr int64_t kAlignment = 256;
}  // namespace

void StepBuffers::Reserve(int64_t max_tokens, int64_t max_rows) {
  if (device_.kind() == DeviceKind::kCpu || (max_tokens <= max_tokens_ && max_rows <= max_rows_)) return;
  max_tokens_ = std::max(max_tokens, max_tokens_);
  max_rows_ = std::max(max_rows, max_rows_);
  int64_t bytes = 0;
  const auto take = [&bytes](int64_t n) {
    const int64_t at = bytes;
    bytes += CeilDiv(n, kAlignment) * kAlignment;
    return at;
  };
  // At most one sequence a token.
  positions_at_ = take(max_tokens_ * 8);
  tokens_at_ = take(max_tokens_ * 4);
  sequence_of_at_ = take(max_tokens_ * 4);
  sequences_at_ = take(max_tokens_ * static_cast<int64_t>(sizeof(SequenceView)));
  rows_at_ = take(max_rows_ * 4);
  ++generation_;
  if (!memory_.Allocate(device_, bytes)) throw std::bad_alloc();
  staged_.assign(static_cast<size_t>(bytes), 0);
}

StepView StepBuffers::View(int64_t tokens, int64_t sequences, int64_t rows) const {
  uint8_t* base = memory_.data();
  return {.tokens = {base + tokens_at_, DType::kI32, {tokens}},
          .positions = {base + positions_at_, DType::kI64, {tokens}},
          .sequence_of = reinterpret_cast<const int32_t*>(base + sequence_of_at_),
          .sequences = reinterpret_cast<const SequenceView*>(base + sequences_at_),
          .num_sequences = sequences,
          .logit_rows = {base + rows_at_, DType::kI32, {rows}}};
}

StepView StepBuffers::Place(const Step& step) {
  if (device_.kind() == DeviceKind::kCpu) return HostView(step);
  const auto rows = static_cast<int64_t>(step.logit_rows.size());
  DSV4_CHECK(step.num_tokens() <= max_tokens_ && rows <= max_rows_);
  const auto put = [this](int64_t at, const auto& values) {
    if (!values.empty()) std::memcpy(staged_.data() + at, values.data(), values.size() * sizeof(values[0]));
  };
  put(positions_at_, step.positions);
  put(tokens_at_, step.tokens);
  put(sequence_of_at_, step.sequence_of);
  put(sequences_at_, step.sequences);
  put(rows_at_, step.logit_rows);
  device_.Upload(memory_.data(), staged_.data(), static_cast<int64_t>(staged_.size()));
  return View(step.num_tokens(), static_cast<int64_t>(step.sequences.size()), rows);
}

}  // namespace dsv4
