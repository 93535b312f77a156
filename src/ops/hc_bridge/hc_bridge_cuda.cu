#include "ops/hc_bridge/hc_bridge.h"
#include "ops/hc_pre/site.cuh"

namespace dsv4 {

namespace {

hc::Site SiteOf(const HcBridgeArgs& a) {
  return {.streams = a.streams.f32(),
          .y = a.y ? a.y.f32() : nullptr,
          .post_in = a.post.f32(),
          .comb_in = a.comb.f32(),
          .fn = a.fn.codes,
          .base = a.base.f32(),
          .scale = a.scale.f32(),
          .norm_weight = a.norm.f32(),
          .x = a.x.f32(),
          .post = a.post.f32(),
          .comb = a.comb.f32(),
          .x_blocks = a.x_blocks,
          .row_blocks8 = static_cast<int>((a.streams.dim(0) + 7) / 8),
          .num_streams = static_cast<int>(a.streams.dim(1)),
          .d = static_cast<int>(a.streams.dim(2)),
          .num_mixes = static_cast<int>(a.fn.rows),
          .iters = static_cast<int>(a.iters),
          .num_tokens = a.streams.dim(0),
          .eps = a.eps,
          .site_norm_eps = a.norm_eps,
          .x_norm_eps = a.norm_eps,
          .bf16 = a.fn.format == WeightFormat::kBf16};
}

}  // namespace

bool HcBridgeWritesBlocks(const ExecContext& ctx, const HcBridgeArgs& a) {
  return ctx.device == DeviceKind::kCuda && hc::RunsAsPrefill(ctx, SiteOf(a));
}

void HcBridgeCuda(const ExecContext& ctx, const HcBridgeArgs& a) { hc::RunSite(ctx, SiteOf(a)); }

}  // namespace dsv4
