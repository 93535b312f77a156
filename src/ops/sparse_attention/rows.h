// The rows that one token attends to, in the contract's order; shared by every implementation of SparseAttention.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/sparse_attention/sparse_attention.h"

namespace dsv4 {

class AttendedRows {
 public:
  AttendedRows(const SparseAttentionArgs& a, int64_t t) : a_(a), seq_(a.cache.sequence(t)) {
    const int64_t position = a.cache.positions[t];
    first_ = std::max<int64_t>(0, position - a.cache.window + 1);
    num_window_ = position - first_ + 1;
    const int64_t ratio = a.cache.layer->main.ratio;
    if (ratio == 0) return;
    const int64_t visible = (position + 1) / ratio;
    if (!a.topk_idxs) {
      num_compressed_ = visible;
    } else {
      picks_ = a.topk_idxs.i32() + t * a.topk_idxs.dim(1);
      const int64_t k = std::min(a.topk_idxs.dim(1), visible);
      while (num_compressed_ < k && picks_[num_compressed_] >= 0) ++num_compressed_;
    }
  }

  int64_t size() const { return num_window_ + num_compressed_; }

  // The location of row i: in the step's own rows, in the ring, or among the compressed rows.
  struct Place {
    const float* own;    // f32 [Dh]; null: a cached row
    int64_t ring_slot;   // -1: not in the ring
    int64_t compressed;  // row number, if neither
  };
  Place Locate(int64_t i) const {
    if (i >= num_window_) return {nullptr, -1, picks_ ? picks_[i - num_window_] : i - num_window_};
    const int64_t position = first_ + i;
    if (position < seq_.start) return {nullptr, position % a_.cache.layer->window_slots, -1};
    return {a_.kv.f32() + (seq_.begin + position - seq_.start) * a_.kv.dim(1), -1, -1};
  }
  RowSlot Slot(const Place& place) const {
    if (place.ring_slot >= 0) return {a_.cache.window_rows(seq_), place.ring_slot};
    return EmittedRow(a_.cache.layer->main, seq_, place.compressed);
  }

  // Row i as f32 [Dh]: a pointer into the step's own rows, or into `buffer` after decoding.
  const float* Get(int64_t i, float* buffer) const {
    const Place place = Locate(i);
    if (place.own != nullptr) return place.own;
    const RowSlot slot = Slot(place);
    slot.rows.Read(slot.index, buffer);
    return buffer;
  }

 private:
  const SparseAttentionArgs& a_;
  const SequenceView& seq_;
  int64_t first_ = 0, num_window_ = 0, num_compressed_ = 0;
  const int32_t* picks_ = nullptr;
};

}  // namespace dsv4
