#include "ops/window_append/window_append.h"

#include <algorithm>

namespace dsv4 {

void WindowAppendRef(const ExecContext&, const WindowAppendArgs& a) {
  const int64_t dh = a.kv.dim(1);
  for (int64_t s = 0; s < a.cache.num_sequences; ++s) {
    const SequenceView& seq = a.cache.sequences[s];
    const RowArray ring = a.cache.window_rows(seq);
    const int64_t slots = a.cache.layer->window_slots;
    for (int64_t t = std::max(seq.begin, seq.end - slots); t < seq.end; ++t) {
      ring.Write((seq.start + t - seq.begin) % slots, a.kv.f32() + t * dh);
    }
  }
}

}  // namespace dsv4
