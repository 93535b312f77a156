#include "ops/hc_pre/hc_pre.h"
#include "ops/hc_pre/site.cuh"

namespace dsv4 {

namespace hc {

namespace {

template <int kStreams, typename Weight>
void LaunchDots(const ExecContext& ctx, const Site& s) {
  const int tokens = s.num_tokens <= kGroup ? kGroup : 4 * kGroup;
  const dim3 grid(static_cast<unsigned>(s.blocks()), static_cast<unsigned>(CeilDiv(s.num_tokens, tokens)));
  if (s.y != nullptr) {
    Launch(ctx, DotsKernel<kStreams, Weight, true>, grid, dim3(kDotsThreads), 0, s, tokens);
  } else {
    Launch(ctx, DotsKernel<kStreams, Weight, false>, grid, dim3(kDotsThreads), 0, s, tokens);
  }
}

void RunPart(const ExecContext& ctx, const Site& s) {
  if (s.num_streams == 4) {
    s.bf16 ? LaunchDots<4, __nv_bfloat16>(ctx, s) : LaunchDots<4, float>(ctx, s);
  } else {
    s.bf16 ? LaunchDots<0, __nv_bfloat16>(ctx, s) : LaunchDots<0, float>(ctx, s);
  }
  const dim3 grid(static_cast<unsigned>(s.num_tokens)), block(kMixThreads + 32);
  if (s.num_streams != 4) {
    Launch(ctx, MixKernel<0, 0>, grid, block, 0, s);
  } else if (!s.vector || s.d > 16 * kMixThreads) {
    Launch(ctx, MixKernel<4, 0>, grid, block, 0, s);
  } else if (s.d <= 4 * kMixThreads) {
    Launch(ctx, MixKernel<4, 1>, grid, block, 0, s);
  } else if (s.d <= 8 * kMixThreads) {
    Launch(ctx, MixKernel<4, 2>, grid, block, 0, s);
  } else {
    Launch(ctx, MixKernel<4, 4>, grid, block, 0, s);
  }
}

}  // namespace

void RunSite(const ExecContext& ctx, Site s) {
  if (s.num_tokens == 0) return;
  s.vector = s.d % 4 == 0 && Aligned(s.streams, 16) && Aligned(s.y, 16) && Aligned(s.x, 16) && Aligned(s.norm_weight, 16) &&
             Aligned(s.fn, s.bf16 ? 8 : 16);
  s.partial = reinterpret_cast<float*>(ctx.scratch.data);
  const int64_t per_token = static_cast<int64_t>(s.blocks()) * s.padded_mixes() * 4;
  const int64_t most = ctx.scratch.bytes / per_token, total = s.num_tokens;
  DSV4_CHECK(most >= 1, "scratch of ", ctx.scratch.bytes, " bytes");
  const int64_t width = static_cast<int64_t>(s.num_streams) * s.d, mixes = static_cast<int64_t>(s.num_streams) * s.num_streams;
  for (int64_t done = 0; done < total; done += most) {
    Site part = s;
    part.num_tokens = std::min(most, total - done);
    part.streams += done * width;
    part.x += done * s.d;
    if (s.y != nullptr) {
      part.y += done * s.d;
      part.post_in += done * s.num_streams;
      part.comb_in += done * mixes;
    }
    if (s.post != nullptr) {
      part.post += done * s.num_streams;
      part.comb += done * mixes;
    }
    RunPart(ctx, part);
  }
}

}  // namespace hc

void HcPreCuda(const ExecContext& ctx, const HcPreArgs& a) {
  hc::RunSite(ctx, {.streams = a.streams.f32(),
                    .fn = a.fn.codes,
                    .base = a.base.f32(),
                    .scale = a.scale.f32(),
                    .x = a.x.f32(),
                    .post = a.post.f32(),
                    .comb = a.comb.f32(),
                    .num_streams = static_cast<int>(a.streams.dim(1)),
                    .d = static_cast<int>(a.streams.dim(2)),
                    .num_mixes = static_cast<int>(a.fn.rows),
                    .iters = static_cast<int>(a.iters),
                    .num_tokens = a.streams.dim(0),
                    .eps = a.eps,
                    .site_norm_eps = a.norm_eps,
                    .bf16 = a.fn.format == WeightFormat::kBf16});
}

}  // namespace dsv4
