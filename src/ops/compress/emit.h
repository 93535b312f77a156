// The steps of Compress after pooling, shared by every implementation: norm, RoPE, rotation, write.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/compress/compress.h"
#include "ops/round_index_query/hadamard.h"

namespace dsv4 {

// Writes `pooled` [d] as compressed row `row` of sequence `seq`. Changes `pooled`.
inline void EmitRow(const CompressArgs& a, const SequenceView& seq, int64_t row, float* pooled) {
  const int64_t d = a.layout->dim, pairs = a.frequencies.dim(0);
  double square = 0;
  for (int64_t i = 0; i < d; ++i) square += static_cast<double>(pooled[i]) * pooled[i];
  const float scale = static_cast<float>(1.0 / std::sqrt(square / static_cast<double>(d) + a.norm_eps));
  for (int64_t i = 0; i < d; ++i) pooled[i] = pooled[i] * scale * a.norm.f32()[i];
  float* tail = pooled + d - 2 * pairs;
  for (int64_t i = 0; i < pairs; ++i) {
    const float angle = static_cast<float>(row * a.layout->ratio) * a.frequencies.f32()[i];
    const float c = static_cast<float>(std::cos(static_cast<double>(angle)));
    const float s = static_cast<float>(std::sin(static_cast<double>(angle)));
    const float even = tail[2 * i], odd = tail[2 * i + 1];
    tail[2 * i] = even * c - odd * s;
    tail[2 * i + 1] = even * s + odd * c;
  }
  if (a.hadamard) Hadamard(pooled, d);
  const RowSlot slot = EmittedRow(*a.layout, seq, row);
  slot.rows.Write(slot.index, pooled);
}

// The (value, gate) rows of the token at `position`: from this step if it contains the token, else from the state.
struct SlotRows {
  const float* value;  // [coff*d]
  const float* gate;   // [coff*d]
};
inline SlotRows RowsAt(const CompressArgs& a, const SequenceView& seq, int64_t position) {
  const int64_t width = a.layout->overlap * a.layout->dim;
  if (position >= seq.start) {
    const int64_t t = seq.begin + position - seq.start;
    return {a.values.f32() + t * width, a.gates.f32() + t * width};
  }
  const float* row = StateRow(*a.layout, seq, position);
  return {row, row + width};
}

// Stores the rows of the last num_slots tokens of every sequence in the state.
inline void KeepState(const CompressArgs& a) {
  const int64_t width = a.layout->overlap * a.layout->dim;
  for (int64_t s = 0; s < a.cache.num_sequences; ++s) {
    const SequenceView& seq = a.cache.sequences[s];
    const int64_t kept = a.layout->num_slots;
    for (int64_t t = seq.end - seq.begin > kept ? seq.end - kept : seq.begin; t < seq.end; ++t) {
      float* row = StateRow(*a.layout, seq, seq.start + t - seq.begin);
      for (int64_t i = 0; i < width; ++i) row[i] = a.values.f32()[t * width + i];
      for (int64_t i = 0; i < width; ++i) row[width + i] = a.gates.f32()[t * width + i];
    }
  }
}

}  // namespace dsv4
