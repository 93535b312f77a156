// The rows that one token attends to, on the GPU: the same list in the same order as in rows.h.
#pragma once

#include "kv/row_codec.cuh"
#include "ops/sparse_attention/sparse_attention.h"

namespace dsv4::gpu {

// Replaces CacheView for kernels, because its `layer` points to host memory.
struct AttentionView {
  LayerLayout layer;
  int64_t window;
  const SequenceView* sequences;
  const int32_t* sequence_of;
  const int64_t* positions;
  const int32_t* topk_idxs;  // null: every visible compressed row
  int num_picks;             // K
};

inline AttentionView ViewOf(const SparseAttentionArgs& a) {
  return {.layer = *a.cache.layer,
          .window = a.cache.window,
          .sequences = a.cache.sequences,
          .sequence_of = a.cache.sequence_of,
          .positions = a.cache.positions,
          .topk_idxs = a.topk_idxs ? a.topk_idxs.i32() : nullptr,
          .num_picks = a.topk_idxs ? static_cast<int>(a.topk_idxs.dim(1)) : 0};
}

struct AttendedRows {
  const SequenceView* seq;
  int64_t start, begin;  // of the sequence
  int64_t first;         // position of the first window row
  int num_window;
  int num_compressed;    // with picks an upper bound: the list may end at an earlier -1
  const int32_t* picks;  // null: rows 0, 1, ..

  __device__ __forceinline__ AttendedRows(const AttentionView& v, int64_t t) {
    seq = v.sequences + v.sequence_of[t];
    start = seq->start;
    begin = seq->begin;
    const int64_t position = v.positions[t];
    first = max(int64_t{0}, position - v.window + 1);
    num_window = static_cast<int>(position - first + 1);
    num_compressed = 0;
    picks = nullptr;
    const uint32_t ratio = static_cast<uint32_t>(v.layer.main.ratio);
    if (ratio == 0) return;
    num_compressed = static_cast<int>(static_cast<uint32_t>(position + 1) / ratio);
    if (v.topk_idxs != nullptr) {
      picks = v.topk_idxs + t * v.num_picks;
      num_compressed = min(num_compressed, v.num_picks);
    }
  }

  __device__ __forceinline__ int size() const { return num_window + num_compressed; }
};

}  // namespace dsv4::gpu
