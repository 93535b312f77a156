#include "ops/hc_bridge/hc_bridge.h"
#include "ops/hc_pre/site_of.cuh"

namespace dsv4 {

namespace {

hc::Site BridgeSite(const HcBridgeArgs& a) {
  hc::Site site = hc::SiteOf(a);
  site.y = a.y ? a.y.f32() : nullptr;
  site.slots = a.y && a.y.shape.rank() == 3 ? static_cast<int>(a.y.dim(1)) : 1;
  site.post_in = a.post.f32();
  site.comb_in = a.comb.f32();
  site.norm_weight = a.norm.f32();
  site.x_blocks = a.x_blocks;
  site.x_norm_eps = a.norm_eps;
  site.sums_ranks = a.sums_ranks;
  site.pushed = a.pushed;
  site.exchange_site = a.site;
  return site;
}

}  // namespace

void HcBridgeCuda(const ExecContext& ctx, const HcBridgeArgs& a) { hc::RunSite(ctx, BridgeSite(a)); }

}  // namespace dsv4
