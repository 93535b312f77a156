#include "model/deepseek_v4/pass/host_scratch.h"

#include <algorithm>

#include "kv/layout.h"
#include "ops/index_topk/index_topk.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace dsv4::deepseek_v4 {

int64_t HostScratchBytes(const Config& config, int64_t max_context, int num_threads) {
  const int64_t ring = config.window + kSpareSlots;
  int64_t scores = 0, rows = std::min(ring, kMaxSharedRows);
  for (const int64_t ratio : config.compress_ratios) {
    const LayerRule& rule = *FindLayerRule(ratio);
    if (rule.ratio == 0) continue;
    if (rule.indexed) scores = kIndexTokensAtOnce * (max_context / rule.ratio) * 4;
    rows = std::max(rows, std::min(ring + max_context / rule.ratio, kMaxSharedRows));
  }
  return scores * num_threads + rows * config.head_dim * 4;
}

}  // namespace dsv4::deepseek_v4
