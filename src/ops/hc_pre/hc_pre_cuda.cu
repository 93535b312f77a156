#include <algorithm>

#include "device/active_clusters.h"
#include "ops/hc_pre/hc_pre.h"
#include "ops/hc_pre/site.cuh"
#include "ops/hc_pre/site_cluster.cuh"
#include "ops/hc_pre/site_mix.cuh"
#include "ops/hc_pre/site_of.cuh"
#include "ops/hc_pre/site_prefill.cuh"

namespace dsv4 {

namespace hc {

namespace {

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

// Applies GpuHcKernels to a bridge with mixes (hc_head has none), whose tensors are aligned as the engine's are.
HcKernels KernelsOf(const ExecContext& ctx, const Site& s) {
  static_assert(kClusterMixes == (2 + 4) * 4 && kPrefillMixes == kClusterMixes);
  if (s.num_mixes != kClusterMixes || s.post == nullptr || !s.vector || !Aligned(s.post_in, 16) ||
      !Aligned(s.comb_in, 16) || !Aligned(s.comb, 16)) {
    return HcKernels::kAny;
  }
  return GpuHcKernels(ctx, s.num_tokens, s.num_streams, s.d);
}

template <typename Weight, bool kPost, int kRun, int kRanks = 1>
void RunCluster(const ExecContext& ctx, const Site& s, const RankSum<kRanks>& ranks = {}) {
  const auto kernel = ClusterSiteKernel<Weight, kPost, kRun, kRanks>;
  constexpr int kThreads = 32 * (kRun + 1);
  DSV4_CHECK(
      MaxActiveClusters(ctx, reinterpret_cast<const void*>(kernel), kClusterBlocks, kClusterBlocks, kThreads, 0) > 0);
  Launch(ctx, kernel, dim3(static_cast<unsigned>(kClusterBlocks * s.num_tokens)), dim3(kThreads), 0, s, ranks);
}

template <int kRanks>
void RunClusterOfRanks(const ExecContext& ctx, const Site& s) {
  const RankSum<kRanks> ranks{ctx.ranks->memory, ctx.ranks->rank};
  s.d == 4096 ? RunCluster<float, true, 8, kRanks>(ctx, s, ranks) : RunCluster<float, true, 14, kRanks>(ctx, s, ranks);
}

void RunCluster(const ExecContext& ctx, const Site& s) {
  if (s.sums_ranks) {
    switch (ctx.ranks->count) {
      case 2:
        return RunClusterOfRanks<2>(ctx, s);
      case 4:
        return RunClusterOfRanks<4>(ctx, s);
      default:
        return RunClusterOfRanks<8>(ctx, s);
    }
  }
  const auto run = [&]<typename Weight, bool kPost>() {
    s.d == 4096 ? RunCluster<Weight, kPost, 8>(ctx, s) : RunCluster<Weight, kPost, 14>(ctx, s);
  };
  if (s.bf16) {
    s.y ? run.template operator()<__nv_bfloat16, true>() : run.template operator()<__nv_bfloat16, false>();
  } else {
    s.y ? run.template operator()<float, true>() : run.template operator()<float, false>();
  }
}

template <typename Weight>
void LaunchPrefill(const ExecContext& ctx, const Site& s) {
  const int64_t columns = s.blocks();
  // groups of tokens: the blocks fill the GPU once
  const int64_t groups = std::max<int64_t>(1, ctx.gpu.multiprocessors / columns);
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

void RunPart(const ExecContext& ctx, const Site& s) {
  if (s.block_columns == kPrefillColumns) {
    s.bf16 ? LaunchPrefill<__nv_bfloat16>(ctx, s) : LaunchPrefill<float>(ctx, s);
    Launch(ctx, PrefillMixesKernel, dim3(static_cast<unsigned>(CeilDiv(s.num_tokens, kMixesTokens))), dim3(256), 0, s);
    const dim3 tokens(static_cast<unsigned>(s.num_tokens));
    s.d <= 4 * kSumThreads ? Launch(ctx, PrefillSumKernel<1>, tokens, dim3(kSumThreads), 0, s)
                           : Launch(ctx, PrefillSumKernel<2>, tokens, dim3(kSumThreads), 0, s);
    return;
  }
  if (KernelsOf(ctx, s) == HcKernels::kCluster) return RunCluster(ctx, s);
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
  } else if (s.num_tokens <= ctx.gpu.multiprocessors) {
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

void RunSite(const ExecContext& ctx, Site s) {
  if (s.num_tokens == 0) return;
  s.vector = IsVector(s);
  const HcKernels kernels = KernelsOf(ctx, s);
  DSV4_CHECK((s.x_blocks == nullptr || kernels == HcKernels::kPrompt) &&
                 ((s.slots == 1 && !s.sums_ranks) || kernels == HcKernels::kCluster),
             "a site's forms");
  DSV4_CHECK(!s.sums_ranks || s.num_tokens * s.d <= ctx.ranks->memory.elements, "the ranks' room for words");
  if (kernels == HcKernels::kPrompt) {
    static_assert(kPrefillColumns == 256 && 8 * kSumThreads == 8192, "GpuHcKernels");
    s.block_columns = kPrefillColumns;
  }
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
