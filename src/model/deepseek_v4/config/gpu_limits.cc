#include "model/deepseek_v4/config/gpu_limits.h"

#include <algorithm>
#include <string_view>

#include "base/str.h"
#include "ops/compress/compress.h"
#include "ops/experts/experts.h"
#include "ops/index_topk/index_topk.h"
#include "ops/linear/linear.h"
#include "ops/pack_weight/pack_weight.h"
#include "ops/q_prepare/q_prepare.h"
#include "ops/router/router.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace dsv4::deepseek_v4 {

Status CheckGpuLimits(const Config& c) {
  const bool indexes = std::any_of(c.compress_ratios.begin(), c.compress_ratios.end(),
                                   [](int64_t ratio) { return FindLayerRule(ratio)->indexed; });
  struct Limit {
    std::string_view what;
    int64_t value, most;
  };
  for (const Limit& l :
       {Limit{"head_dim", c.head_dim, std::min(kMaxHeadDimOnGpu, kMaxPreparedDimOnGpu)},
        {"qk_rope_head_dim", c.rope_dim, kMaxRopeDimOnGpu},
        {"index_head_dim", indexes ? c.index_head_dim : 0, std::min(kMaxIndexDimOnGpu, kMaxPreparedDimOnGpu)},
        {"n_routed_experts", c.num_experts, std::min(kMaxRoutedOnGpu, kMaxExpertsOnGpu - c.num_shared_experts)},
        {"num_experts_per_tok", c.experts_per_token, kMaxChosenOnGpu},
        {"hidden_size", c.hidden_size, kMaxColumnsOnGpu},
        {"q_lora_rank", c.q_lora_rank, kMaxColumnsOnGpu},
        {"moe_intermediate_size", c.moe_intermediate, kMaxColumnsOnGpu},
        {"vocab_size", c.vocab_size, kMaxRowsOnGpu},
        {"num_attention_heads * head_dim + index_n_heads * index_head_dim",
         c.num_heads * c.head_dim + (indexes ? c.index_heads * c.index_head_dim : 0), kMaxRowsOnGpu},
        {"num_attention_heads * head_dim / o_groups", c.num_heads * c.head_dim / c.o_groups, kMaxColumnsOnGpu},
        {"o_groups * o_lora_rank", c.o_groups * c.o_lora_rank, kMaxColumnsOnGpu}}) {
    if (l.value > l.most) {
      return Unsupported(StrCat(l.what, " is ", l.value, "; the limit on a GPU is ", l.most, "; use --device cpu"));
    }
  }
  return {};
}

Status CheckBecomesTiles(const QuantTensor& m) {
  const WeightFormatInfo& f = InfoOf(m.format);
  if (!f.grid() || m.scale_row_offset % kTileRows16 == 0) return {};
  return Unsupported(StrCat("an ", f.family, " matrix begins at row ", m.scale_row_offset,
                            " of its scale grid's tensor; on a GPU this row must be a multiple of ", kTileRows16,
                            "; use --device cpu"));
}

}  // namespace dsv4::deepseek_v4
