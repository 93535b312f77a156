// The properties of a layer that follow from its compress ratio m: the only source, from the config to the caches.
#pragma once

#include <cstdint>
#include <string_view>

namespace dsv4 {

enum class LayerKind : uint8_t { kSliding, kCsa, kHca };

struct LayerRule {
  int64_t ratio;  // m: tokens per compressed row; 0: no compressed rows
  LayerKind kind;
  int64_t overlap;         // coff: windows of coff * m tokens are pooled, so projections have coff * d columns
  bool indexed;            // an indexer picks the compressed rows; otherwise all are read
  std::string_view other;  // the name in transformers
};

inline constexpr LayerRule kLayerRules[] = {
    {0, LayerKind::kSliding, 1, false, "sliding_attention"},
    {4, LayerKind::kCsa, 2, true, "compressed_sparse_attention"},
    {128, LayerKind::kHca, 1, false, "heavily_compressed_attention"},
};

// The largest overlap, for memory that serves every layer.
constexpr int64_t MaxOverlap() {
  int64_t most = 0;
  for (const LayerRule& rule : kLayerRules) most = rule.overlap > most ? rule.overlap : most;
  return most;
}

// Null: no layer has this ratio.
constexpr const LayerRule* FindLayerRule(int64_t ratio) {
  for (const LayerRule& rule : kLayerRules) {
    if (rule.ratio == ratio) return &rule;
  }
  return nullptr;
}

}  // namespace dsv4
