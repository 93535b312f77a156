#include "model/deepseek_v4/plan.h"

#include <algorithm>

namespace dsv4 {

KvSpec MakeKvSpec(const Config& config, KvDtype kv_dtype, IndexDtype index_dtype) {
  KvSpec spec;
  spec.compress_ratios = config.compress_ratios;
  spec.window = config.window;
  spec.head_dim = config.head_dim;
  spec.rope_dim = config.rope_dim;
  spec.index_head_dim = config.index_head_dim;
  spec.kv_dtype = kv_dtype;
  spec.index_dtype = index_dtype;
  return spec;
}

KvBytes KvFootprint(const KvSpec& spec) {
  const KvLayout layout = MakeKvLayout(spec);
  int64_t rows_bytes = 0;  // of a page, without its alignment
  for (const LayerLayout& layer : layout.layers) {
    for (const CompressorLayout& c : {layer.main, layer.index}) rows_bytes += c.rows_per_page * c.row.row_bytes();
  }
  return {static_cast<double>(rows_bytes) / static_cast<double>(layout.page_tokens), layout.fixed_bytes};
}

int64_t ActivationEstimate(const Config& c, int64_t tokens) {
  const int64_t streams = 2 * c.hc_mult * c.hidden_size;                       // read and written
  const int64_t attention = c.q_lora_rank + 2 * c.num_heads * c.head_dim + 3 * c.head_dim + c.o_groups * c.o_lora_rank;
  const int64_t indexer = c.index_heads * c.index_head_dim + c.index_heads + 4 * c.index_head_dim + c.index_topk;
  const int64_t experts = c.num_experts + c.experts_per_token * (3 * c.moe_intermediate + c.hidden_size);
  const int64_t vectors = 3 * c.hidden_size;                                   // x, y and one to spare
  return 4 * tokens * (streams + vectors + std::max(attention + indexer, experts)) + 4 * c.vocab_size;
}

}  // namespace dsv4
