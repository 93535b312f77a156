#include "model/deepseek_v4/pass/host_scratch.h"

#include <algorithm>

#include "kv/layout.h"

namespace dsv4::deepseek_v4 {

int64_t HostScratchBytes(const Config& config, int64_t max_context, int num_threads) {
  constexpr int64_t kScoredTokens = 8;    // kTokenTile of ops/index_topk/index_topk_cpu.cc
  constexpr int64_t kSharedRows = 16384;  // kMaxShared of ops/sparse_attention/sparse_attention_cpu.cc
  const int64_t ring = config.window + kSpareSlots;
  int64_t scores = 0, rows = std::min(ring, kSharedRows);
  for (const int64_t ratio : config.compress_ratios) {
    const LayerRule& rule = *FindLayerRule(ratio);
    if (rule.ratio == 0) continue;
    if (rule.indexed) scores = kScoredTokens * (max_context / rule.ratio) * 4;
    rows = std::max(rows, std::min(ring + max_context / rule.ratio, kSharedRows));
  }
  return scores * num_threads + rows * config.head_dim * 4;
}

}  // namespace dsv4::deepseek_v4
