// The KV state of a sequence that a next token could read: bytes of window rows, compressed rows, index keys and
// compressor inputs, and nothing after its tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kv/layout.h"
#include "kv/sequence_cache.h"

namespace dsv4::test {

// The state of the first `num_tokens` tokens of a cache in host memory.
inline std::vector<uint8_t> VisibleState(const KvLayout& layout, const SequenceCache& cache, int64_t num_tokens) {
  std::vector<uint8_t> out;
  const SequenceView seq = cache.View(num_tokens, 0, 0);
  const auto add_row = [&out](const RowArray& rows, int64_t i) {
    out.insert(out.end(), rows.data(i), rows.data(i) + rows.format.data_bytes);
    out.insert(out.end(), rows.scale(i), rows.scale(i) + rows.format.scale_bytes);
  };
  for (const LayerLayout& layer : layout.layers) {
    const RowArray ring{seq.fixed + layer.window_offset, layer.window_slots, layer.window_row};
    for (int64_t p = std::max<int64_t>(0, num_tokens - layout.window + 1); p < num_tokens; ++p) {
      add_row(ring, p % layer.window_slots);
    }
    for (const CompressorLayout* c : {&layer.main, &layer.index}) {
      if (c->ratio == 0) continue;
      for (int64_t w = 0; w < num_tokens / c->ratio; ++w) {
        const RowSlot slot = EmittedRow(*c, seq, w);
        add_row(slot.rows, slot.index);
      }
      // The part of the next compressed row's inputs that is present.
      const int64_t first = (num_tokens / c->ratio - (c->overlap - 1)) * c->ratio;
      for (int64_t p = std::max<int64_t>(0, first); p < num_tokens; ++p) {
        const auto* state = reinterpret_cast<const uint8_t*>(StateRow(*c, seq, p));
        out.insert(out.end(), state, state + 2 * c->overlap * c->dim * 4);
      }
    }
  }
  return out;
}

}  // namespace dsv4::test
