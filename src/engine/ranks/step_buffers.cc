#include "engine/ranks/step_buffers.h"

#include <cstring>
#include <new>

#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

// The offsets of the arrays of a step of that size, and their total length. At most one sequence per token.
struct Places {
  int64_t positions, tokens, sequence_of, sequences, rows, bytes = 0;

  explicit Places(int64_t max_tokens) {
    const auto take = [this](int64_t n) {
      constexpr int64_t kAlignment = 256;
      const int64_t at = bytes;
      bytes += CeilDiv(n, kAlignment) * kAlignment;
      return at;
    };
    positions = take(max_tokens * 8);
    tokens = take(max_tokens * 4);
    sequence_of = take(max_tokens * 4);
    sequences = take(max_tokens * static_cast<int64_t>(sizeof(SequenceView)));
    rows = take(max_tokens * 4);
  }
};

}  // namespace

int64_t StepBuffers::Bytes(int64_t max_tokens) { return Places(kSmallStep).bytes + Places(max_tokens).bytes; }

void StepBuffers::Reserve(int64_t max_tokens) {
  if (device_.kind() == DeviceKind::kCpu) return;
  Reserve(small_, kSmallStep);
  Reserve(large_, max_tokens);
}

void StepBuffers::Reserve(Block& b, int64_t max_tokens) {
  if (max_tokens <= b.max_tokens) return;
  b.max_tokens = max_tokens;
  const Places places(max_tokens);
  b.positions_at = places.positions;
  b.tokens_at = places.tokens;
  b.sequence_of_at = places.sequence_of;
  b.sequences_at = places.sequences;
  b.rows_at = places.rows;
  if (!b.memory.Allocate(device_, places.bytes)) {
    b.max_tokens = 0;
    throw std::bad_alloc();
  }
  b.staged.assign(static_cast<size_t>(places.bytes), 0);
}

StepView StepBuffers::Place(const Step& step) {
  if (device_.kind() == DeviceKind::kCpu) return HostView(step);
  const int64_t t = step.num_tokens(), rows = static_cast<int64_t>(step.logit_rows.size());
  Block& b = t <= kSmallStep ? small_ : large_;
  DSV4_CHECK(t <= b.max_tokens && rows <= t);
  const auto put = [&b](int64_t at, const auto& values) {
    if (!values.empty()) std::memcpy(b.staged.data() + at, values.data(), values.size() * sizeof(values[0]));
  };
  put(b.positions_at, step.positions);
  put(b.tokens_at, step.tokens);
  put(b.sequence_of_at, step.sequence_of);
  put(b.sequences_at, step.sequences);
  put(b.rows_at, step.logit_rows);
  device_.Upload(b.memory.data(), b.staged.data(), static_cast<int64_t>(b.staged.size()));
  uint8_t* base = b.memory.data();
  return {.tokens = {base + b.tokens_at, DType::kI32, {t}},
          .positions = {base + b.positions_at, DType::kI64, {t}},
          .sequence_of = reinterpret_cast<const int32_t*>(base + b.sequence_of_at),
          .sequences = reinterpret_cast<const SequenceView*>(base + b.sequences_at),
          .num_sequences = static_cast<int64_t>(step.sequences.size()),
          .logit_rows = {base + b.rows_at, DType::kI32, {rows}},
          .most_each = step.most_each(),
          .keeps_drafts = step.keeps_drafts};
}

}  // namespace dsv4
