#include "kv/layout.h"

#include "base/check.h"
#include "kv/layer_kind.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

constexpr int64_t kPageTokens = 256;  // two rows of a ratio-128 layer, 64 of a ratio-4 layer
constexpr int64_t kAlignment = 64;

int64_t Take(int64_t& offset, int64_t bytes) {
  const int64_t at = offset;
  offset = CeilDiv(offset + bytes, kAlignment) * kAlignment;
  return at;
}

CompressorLayout MakeCompressor(const LayerRule& rule, int64_t dim, const RowFormat& row, int64_t spare,
                                KvLayout& layout) {
  DSV4_CHECK(kPageTokens % rule.ratio == 0, "ratio ", rule.ratio);
  CompressorLayout c{.ratio = rule.ratio, .overlap = rule.overlap, .dim = dim};
  c.num_slots = c.inputs() + spare;
  c.rows_per_page = kPageTokens / rule.ratio;
  c.row = row;
  c.state_offset = Take(layout.fixed_bytes, c.state_floats() * 4);
  c.rows_offset = Take(layout.page_bytes, c.rows_per_page * row.row_bytes());
  return c;
}

}  // namespace

KvLayout MakeKvLayout(const KvSpec& spec) {
  KvLayout layout;
  layout.window = spec.window;
  layout.page_tokens = kPageTokens;
  const RowFormat row = KvRowFormat(spec.kv_dtype, spec.head_dim, spec.rope_dim);
  const RowFormat key = IndexKeyFormat(spec.index_dtype, spec.index_head_dim);
  for (const int64_t ratio : spec.compress_ratios) {
    const LayerRule* rule = FindLayerRule(ratio);
    DSV4_CHECK(rule != nullptr, "ratio ", ratio);
    LayerLayout layer;
    layer.window_row = row;
    layer.window_slots = spec.window + spec.spare_slots;
    layer.window_offset = Take(layout.fixed_bytes, layer.window_slots * row.row_bytes());
    if (ratio != 0) layer.main = MakeCompressor(*rule, spec.head_dim, row, spec.spare_slots, layout);
    if (rule->indexed) layer.index = MakeCompressor(*rule, spec.index_head_dim, key, spec.spare_slots, layout);
    layout.layers.push_back(layer);
  }
  if (spec.hidden_width > 0) {
    layout.hidden_slots = kSpareSlots;
    layout.hidden_offset = Take(layout.fixed_bytes, kSpareSlots * spec.hidden_width * 4);
  }
  return layout;
}

}  // namespace dsv4
