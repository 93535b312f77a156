#include "device/active_clusters.h"
#include "ops/hc_pre/hc_pre.h"
#include "ops/hc_pre/site.cuh"
#include "ops/hc_pre/site_cluster.cuh"
#include "ops/hc_pre/site_of.cuh"
#include "ops/hc_pre/site_prefill.cuh"

namespace dsv4 {

namespace hc {

namespace {

constexpr int64_t kMaxClusterTokens = 4;  // an H200 places no more clusters of 16 at once

template <int kStreams, typename Weight>
void LaunchDots(const ExecContext& ctx, const Site& s) {
  const int tokens = s.num_tokens <= kGroup ? kGroup : s.num_tokens <= 4 * kGroup ? 2 * kGroup : 4 * kGroup;
  const dim3 grid(static_cast<unsigned>(s.blocks()), static_cast<unsigned>(CeilDiv(s.num_tokens, tokens)));
  if (s.y != nullptr) {
    Launch(ctx, DotsKernel<kStreams, Weight, true>, grid, dim3(kDotsThreads), 0, s, tokens);
  } else {
    Launch(ctx, DotsKernel<kStreams, Weight, false>, grid, dim3(kDotsThreads), 0, s, tokens);
  }
}

// `ctx` null: only says whether it can.
template <typename Weight, bool kPost, int kRun>
bool RunCluster(const ExecContext* ctx, const Site& s) {
  const auto kernel = ClusterSiteKernel<Weight, kPost, kRun>;
  constexpr int kThreads = 32 * (kRun + 1);
  const bool can = MaxActiveClusters(reinterpret_cast<const void*>(kernel), kClusterBlocks, kClusterBlocks, kThreads, 0) > 0;
  if (can && ctx != nullptr)
    Launch(*ctx, kernel, dim3(static_cast<unsigned>(kClusterBlocks * s.num_tokens)), dim3(kThreads), 0, s);
  return can;
}

// For the released models' shapes and few tokens: false where it does not run.
bool RunCluster(const ExecContext* ctx, const Site& s) {
  if (s.num_tokens > kMaxClusterTokens || s.num_streams != 4 || s.num_mixes != kClusterMixes || !s.vector ||
      !Aligned(s.comb, 16))
    return false;
  const auto run = [&]<typename Weight, bool kPost>() {
    return s.d == 4096   ? RunCluster<Weight, kPost, 8>(ctx, s)
           : s.d == 7168 ? RunCluster<Weight, kPost, 14>(ctx, s)
                         : false;
  };
  if (s.bf16)
    return s.y ? run.template operator()<__nv_bfloat16, true>()
               : run.template operator()<__nv_bfloat16, false>();
  return s.y ? run.template operator()<float, true>() : run.template operator()<float, false>();
}

template <typename Weight>
void LaunchPrefill(const ExecContext& ctx, const Site& s) {
  const int64_t columns = s.blocks();
  const int64_t groups = std::max<int64_t>(1, NumSms() / columns);  // of tokens: the blocks fill the chip once
  const int64_t tokens = CeilDiv(CeilDiv(s.num_tokens, groups), kTokenTile) * kTokenTile;
  const dim3 grid(static_cast<unsigned>(columns), static_cast<unsigned>(CeilDiv(s.num_tokens, tokens)));
  const auto kernel = s.y != nullptr ? PrefillDotsKernel<Weight, true> : PrefillDotsKernel<Weight, false>;
  Launch(ctx, kernel, grid, dim3(kPrefillThreads), sizeof(PrefillShared), s, tokens);
}

template <bool kEarly>
void LaunchMix(const ExecContext& ctx, const Site& s) {
  const dim3 grid(static_cast<unsigned>(s.num_tokens)), block(kMixThreads + 32);
  if (s.d <= 4 * kMixThreads) {
    Launch(ctx, MixKernel<4, 1, kEarly>, grid, block, 0, s);
  } else if (s.d <= 8 * kMixThreads) {
    Launch(ctx, MixKernel<4, 2, kEarly>, grid, block, 0, s);
  } else {
    Launch(ctx, MixKernel<4, 4, kEarly>, grid, block, 0, s);
  }
}

bool IsPrefill(const ExecContext& ctx, const Site& s) {
  return ctx.regime != Regime::kDecode && s.num_streams == 4 && s.num_mixes == kPrefillMixes && s.vector &&
         s.d % kPrefillColumns == 0 && s.d <= 8 * kSumThreads && s.post != nullptr && Aligned(s.post_in, 16) && Aligned(s.comb_in, 16) && Aligned(s.comb, 16);
}

void RunPart(const ExecContext& ctx, const Site& s) {
  if (s.block_columns == kPrefillColumns) {
    s.bf16 ? LaunchPrefill<__nv_bfloat16>(ctx, s) : LaunchPrefill<float>(ctx, s);
    Launch(ctx, PrefillMixesKernel, dim3(static_cast<unsigned>(CeilDiv(s.num_tokens, kMixesTokens))), dim3(256), 0, s);
    const dim3 tokens(static_cast<unsigned>(s.num_tokens));
    s.d <= 4 * kSumThreads ? Launch(ctx, PrefillSumKernel<1>, tokens, dim3(kSumThreads), 0, s) : Launch(ctx, PrefillSumKernel<2>, tokens, dim3(kSumThreads), 0, s);
    return;
  }
  if (RunCluster(&ctx, s)) return;
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
  } else if (s.num_tokens <= NumSms()) {
    LaunchMix<true>(ctx, s);
  } else {
    LaunchMix<false>(ctx, s);
  }
}

}  // namespace

namespace {

bool IsVector(const Site& s) {
  return s.d % 4 == 0 && Aligned(s.streams, 16) && Aligned(s.y, 16) && Aligned(s.x, 16) && Aligned(s.norm_weight, 16) &&
         Aligned(s.fn, s.bf16 ? 8 : 16);
}

}  // namespace

bool AddsSlots(const ExecContext& ctx, Site s) {
  s.vector = IsVector(s);
  // With D of 7,168 the slots do not fit the registers of 15 warps: slower than the launch that it saves.
  return ctx.regime == Regime::kDecode && s.slots <= kMaxSlots && (s.slots == 1 || s.d == 4096) && RunCluster(nullptr, s);
}

bool RunsAsPrefill(const ExecContext& ctx, Site s) {
  s.vector = IsVector(s);
  return IsPrefill(ctx, s);
}

void RunSite(const ExecContext& ctx, Site s) {
  if (s.num_tokens == 0) return;
  s.vector = IsVector(s);
  if (IsPrefill(ctx, s)) s.block_columns = kPrefillColumns;
  s.row_blocks8 = static_cast<int>(CeilDiv(s.num_tokens, 8));
  s.partial = reinterpret_cast<float*>(ctx.scratch.data);
  const int64_t per_token = static_cast<int64_t>(s.blocks()) * s.padded_mixes() * 4;
  const int64_t most = ctx.scratch.bytes / per_token, total = s.num_tokens;
  DSV4_CHECK(most >= 1, "scratch of ", ctx.scratch.bytes, " bytes");
  const int64_t width = static_cast<int64_t>(s.num_streams) * s.d,
                mixes = static_cast<int64_t>(s.num_streams) * s.num_streams;
  for (int64_t done = 0; done < total; done += most) {
    Site part = s;
    part.num_tokens = std::min(most, total - done);
    part.streams += done * width;
    part.x += done * s.d;
    part.first_token += done;
    if (s.y != nullptr) {
      part.y += done * s.slots * s.d;
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

void HcPreCuda(const ExecContext& ctx, const HcPreArgs& a) { hc::RunSite(ctx, hc::SiteOf(a)); }

}  // namespace dsv4
