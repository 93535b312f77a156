// What a layer's compress ratio m says about the layer. Whoever asks, from the config to the caches, asks here.
#pragma once

#include <cstdint>
#include <string_view>

namespace dsv4 {

enum class LayerKind : uint8_t { kSliding, kCsa, kHca };

struct LayerRule {
  int64_t ratio;  // m: tokens a compressed row stands for; 0: none are made
  LayerKind kind;
  int64_t overlap;         // coff: windows of coff * m tokens are pooled, so projections have coff * d columns
  bool indexed;            // an indexer picks the compressed rows; else all are read
  std::string_view other;  // transformers' name for it
};

inline constexpr LayerRule kLayerRules[] = {
    {0, LayerKind::kSliding, 1, false, "sliding_attention"},
    {4, LayerKind::kCsa, 2, true, "compressed_sparse_attention"},
    {128, LayerKind::kHca, 1, false, "heavily_compressed_attention"},
};

// The widest of them, for memory that serves every layer.
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
