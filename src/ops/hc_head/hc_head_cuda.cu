#include "ops/hc_head/hc_head.h"
#include "ops/hc_pre/site.cuh"

namespace dsv4 {

void HcHeadCuda(const ExecContext& ctx, const HcHeadArgs& a) {
  hc::RunSite(ctx, {.streams = a.streams.f32(),
                    .fn = a.fn.codes,
                    .base = a.base.f32(),
                    .scale = a.scale.f32(),
                    .x = a.out.f32(),
                    .num_streams = static_cast<int>(a.streams.dim(1)),
                    .d = static_cast<int>(a.streams.dim(2)),
                    .num_mixes = static_cast<int>(a.fn.rows),
                    .num_tokens = a.streams.dim(0),
                    .eps = a.eps,
                    .site_norm_eps = a.norm_eps,
                    .bf16 = a.fn.format == WeightFormat::kBf16});
}

}  // namespace dsv4
