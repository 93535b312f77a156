#include "ops/registry.h"

#include "ops/accept_drafts/accept_drafts.h"
#include "ops/advance/advance.h"
#include "ops/block_rows/block_rows.h"
#include "ops/compress/compress.h"
#include "ops/count_experts/count_experts.h"
#include "ops/digest/digest.h"
#include "ops/embed/embed.h"
#include "ops/experts/experts.h"
#include "ops/fill_weight/fill_weight.h"
#include "ops/gather_ranks/gather_ranks.h"
#include "ops/gather_rows/gather_rows.h"
#include "ops/gather_shares/gather_shares.h"
#include "ops/hc_bridge/hc_bridge.h"
#include "ops/hc_head/hc_head.h"
#include "ops/hc_post/hc_post.h"
#include "ops/hc_pre/hc_pre.h"
#include "ops/index_topk/index_topk.h"
#include "ops/linear/linear.h"
#include "ops/pack_weight/pack_weight.h"
#include "ops/place_drafts/place_drafts.h"
#include "ops/previous_rows/previous_rows.h"
#include "ops/q_prepare/q_prepare.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "ops/rope_angles/rope_angles.h"
#include "ops/round_activation/round_activation.h"
#include "ops/round_index_query/round_index_query.h"
#include "ops/round_kv/round_kv.h"
#include "ops/router/router.h"
#include "ops/sample/sample.h"
#include "ops/sparse_attention/sparse_attention.h"
#include "ops/step_before/step_before.h"
#include "ops/stream_add/stream_add.h"
#include "ops/stream_mean/stream_mean.h"
#include "ops/sum_ranks/sum_ranks.h"
#include "ops/swiglu/swiglu.h"
#include "ops/window_append/window_append.h"

namespace dsv4 {

std::vector<OpImplementations> ListOps(const ExecContext& ctx) {
  return {
      DescribeAcceptDrafts(ctx), DescribeAdvance(ctx),         DescribeBlockRows(ctx),       DescribeCompress(ctx),
      DescribeCountExperts(ctx), DescribeDigest(ctx),          DescribeEmbed(ctx),           DescribeExperts(ctx),
      DescribeFillWeight(ctx),   DescribeGatherRanks(ctx),     DescribeGatherRows(ctx),      DescribeGatherShares(ctx),
      DescribeHcBridge(ctx),     DescribeHcHead(ctx),          DescribeHcPost(ctx),          DescribeHcPre(ctx),
      DescribeIndexTopk(ctx),    DescribeLinear(ctx),          DescribePackWeight(ctx),      DescribePlaceDrafts(ctx),
      DescribePreviousRows(ctx), DescribeQPrepare(ctx),        DescribeRmsNorm(ctx),         DescribeRope(ctx),
      DescribeRopeAngles(ctx),   DescribeRoundActivation(ctx), DescribeRoundIndexQuery(ctx), DescribeRoundKv(ctx),
      DescribeRouter(ctx),       DescribeSample(ctx),          DescribeSparseAttention(ctx), DescribeStepBefore(ctx),
      DescribeStreamAdd(ctx),    DescribeStreamMean(ctx),      DescribeSumRanks(ctx),        DescribeSwiglu(ctx),
      DescribeWindowAppend(ctx),
  };
}

}  // namespace dsv4
