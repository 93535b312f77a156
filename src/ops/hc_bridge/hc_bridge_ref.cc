#include "ops/hc_bridge/hc_bridge.h"
#include "ops/hc_post/hc_post.h"
#include "ops/hc_pre/hc_pre.h"
#include "ops/rms_norm/rms_norm.h"

namespace dsv4 {

// The composition of the ops, each in the implementation that the context selects.
void HcBridgeRef(const ExecContext& ctx, const HcBridgeArgs& a) {
  if (a.y) HcPost(ctx, {.y = a.y, .post = a.post, .comb = a.comb, .streams = a.streams});
  HcPre(ctx, {.streams = a.streams,
              .fn = a.fn,
              .base = a.base,
              .scale = a.scale,
              .iters = a.iters,
              .eps = a.eps,
              .norm_eps = a.norm_eps,
              .x = a.x,
              .post = a.post,
              .comb = a.comb});
  RmsNorm(ctx, {.x = a.x, .weight = a.norm, .y = a.x, .eps = a.norm_eps});
}

}  // namespace dsv4
