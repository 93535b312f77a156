#include "kv/layout.h"

#include "base/check.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

constexpr int64_t kPageTokens = 256;   // two rows of a ratio-128 layer, 64 of a ratio-4 layer
constexpr int64_t kAlignment = 64;

int64_t Take(int64_t& offset, int64_t bytes) {
  const int64_t at = offset;
  offset = CeilDiv(offset + bytes, kAlignment) * kAlignment;
  return at;
}

CompressorLayout MakeCompressor(int64_t ratio, int64_t dim, const RowFormat& row, KvLayout& layout) {
  DSV4_CHECK(kPageTokens % ratio == 0, "ratio ", ratio);
  CompressorLayout c{.ratio = ratio, .overlap = ratio == 4 ? 2 : 1, .dim = dim};
  c.rows_per_page = kPageTokens / ratio;
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
    LayerLayout layer;
    layer.window_row = row;
    layer.window_offset = Take(layout.fixed_bytes, spec.window * row.row_bytes());
    if (ratio != 0) layer.main = MakeCompressor(ratio, spec.head_dim, row, layout);
    if (ratio == 4) layer.index = MakeCompressor(ratio, spec.index_head_dim, key, layout);
    layout.layers.push_back(layer);
  }
  return layout;
}

}  // namespace dsv4
