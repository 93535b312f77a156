// The layout of a sequence's KV state (docs/dev/formats.md, 5). There are two kinds of memory:
//   fixed  one block per sequence: for every layer the window ring and the compressor states
//   pages  each covers page_tokens positions, for all layers: compressed rows and index keys, appended as they are made
#pragma once

#include <cstdint>
#include <vector>

#include "dsv4/types.h"
#include "kv/row_format.h"

namespace dsv4 {

// Slots of a ring beyond the rows that a token reads: up to this many tokens can be rolled back (docs/speculation.md).
inline constexpr int64_t kSpareSlots = 8;

struct KvSpec {
  std::vector<int64_t> compress_ratios;  // per layer, values of kLayerRules (layer_kind.h)
  int64_t window = 0;                    // W
  int64_t head_dim = 0;                  // Dh
  int64_t rope_dim = 0;                  // Dr
  int64_t index_head_dim = 0;            // Di
  KvDtype kv_dtype = KvDtype::kFp8;
  IndexDtype index_dtype = IndexDtype::kFp4;
  int64_t spare_slots = kSpareSlots;  // of every ring
  int64_t hidden_width = 0;           // width of the values that a draft module keeps for the last positions; 0: none
};

// A compressor's state: a ring of the last tokens' projections f32 [num_slots, 2, coff*d], slot = position % num_slots.
// Values come first, then gate scores (slot bias included). A compressed row pools the last coff*m tokens.
struct CompressorLayout {
  int64_t ratio = 0;         // m; 0: no compressor
  int64_t overlap = 0;       // coff
  int64_t dim = 0;           // d
  int64_t num_slots = 0;     // of the ring; at least inputs()
  int64_t state_offset = 0;  // in the fixed block
  int64_t rows_offset = 0;   // of the emitted rows, in each page
  int64_t rows_per_page = 0;
  RowFormat row;

  int64_t inputs() const { return overlap * ratio; }  // tokens that a compressed row pools
  int64_t state_floats() const { return num_slots * 2 * overlap * dim; }
};

struct LayerLayout {
  int64_t window_offset = 0;  // ring of rows in the fixed block, slot = position % window_slots
  int64_t window_slots = 0;   // at least W
  RowFormat window_row;
  CompressorLayout main;   // rows that attention reads
  CompressorLayout index;  // keys that the indexer reads (CSA only)
};

struct KvLayout {
  std::vector<LayerLayout> layers;
  int64_t window = 0;         // W
  int64_t hidden_offset = 0;  // ring f32 [hidden_slots, KvSpec::hidden_width] in the fixed block
  int64_t hidden_slots = 0;   // slot = position % hidden_slots
  int64_t page_tokens = 0;
  int64_t fixed_bytes = 0;
  int64_t page_bytes = 0;  // 0 when no layer compresses
};

KvLayout MakeKvLayout(const KvSpec& spec);

// One sequence of a step, as ops use it.
struct SequenceView {
  int64_t start = 0;           // position of its first token in this step = tokens cached before it
  int64_t begin = 0, end = 0;  // its rows [begin, end) of the step's [T, ...] buffers
  uint8_t* fixed = nullptr;
  uint8_t* const* pages = nullptr;  // page i covers positions [i * page_tokens, (i+1) * page_tokens)
};

// The KV state of one layer for every sequence of a step.
struct CacheView {
  const LayerLayout* layer = nullptr;
  int64_t window = 0;                       // W: a token reads the last W rows, its own included
  const SequenceView* sequences = nullptr;  // [S]
  int64_t num_sequences = 0;
  const int32_t* sequence_of = nullptr;  // [T]: sequence of each row of the step
  const int64_t* positions = nullptr;    // [T]: absolute position of each row of the step
  int64_t num_tokens = 0;                // T

  const SequenceView& sequence(int64_t row) const { return sequences[sequence_of[row]]; }
  RowArray window_rows(const SequenceView& s) const {
    return {s.fixed + layer->window_offset, layer->window_slots, layer->window_row};
  }
};

// Row `row` of a sequence's rows that compressor `c` has emitted.
struct RowSlot {
  RowArray rows;
  int64_t index;
};
inline RowSlot EmittedRow(const CompressorLayout& c, const SequenceView& s, int64_t row) {
  return {{s.pages[row / c.rows_per_page] + c.rows_offset, c.rows_per_page, c.row}, row % c.rows_per_page};
}

// State row of the token at `position`: values f32 [coff*d], then gate scores f32 [coff*d].
inline float* StateRow(const CompressorLayout& c, const SequenceView& s, int64_t position) {
  return reinterpret_cast<float*>(s.fixed + c.state_offset) + position % c.num_slots * 2 * c.overlap * c.dim;
}

}  // namespace dsv4
