#include "ops/hc_bridge/hc_bridge.h"

#include "device/exchange.h"
#include "ops/cuda_row.h"
#include "ops/hc_pre/hc_pre.h"
#include "ops/hc_pre/streams.h"

namespace dsv4 {

void HcBridgeRef(const ExecContext& ctx, const HcBridgeArgs& a);
void HcBridgeCuda(const ExecContext& ctx, const HcBridgeArgs& a);

namespace {

constexpr Candidate<HcBridgeArgs> kHcBridgeCandidates[] = {
    DSV4_CUDA_ROW(HcBridgeCuda, "ClusterSiteKernel, DotsKernel, PrefillDotsKernel"){"ref", SupportsCpu, HcBridgeRef},
};

}  // namespace

void HcBridge(const ExecContext& ctx, const HcBridgeArgs& a) {
  const int64_t t = a.streams.dim(0), h = a.streams.dim(1), d = a.streams.dim(2);
  DSV4_CHECK(h <= kMaxStreams, "streams ", h);
  DSV4_CHECK(a.fn.rows == (2 + h) * h && a.fn.cols == h * d && !a.fn.quantised());
  DSV4_CHECK(a.base.dim(0) == (2 + h) * h && a.scale.dim(0) == 3 && a.iters >= 1);
  DSV4_CHECK(a.x.dim(0) == t && a.x.dim(1) == d && a.norm.dim(0) == d && a.x.data != a.y.data);
  const bool slots = a.y && a.y.shape.rank() == 3;
  DSV4_CHECK(!a.y || (a.y.dim(0) == t && a.y.dim(slots ? 2 : 1) == d));
  DSV4_CHECK(!slots || HcBridgeAddsSlots(ctx, t, h, d, a.y.dim(1)));
  DSV4_CHECK(a.post.num_elements() == t * h && a.comb.num_elements() == t * h * h);
  DSV4_CHECK(a.x_blocks == nullptr || HcBridgeWritesBlocks(ctx, h, d));
  DSV4_CHECK(!a.pushed || (a.sums_ranks && !slots));
  DSV4_CHECK(!a.sums_ranks || (a.y && HcBridgeSumsRanks(ctx, t, h, d, a.fn)));
  RunOp("hc_bridge", kHcBridgeCandidates, ctx, a);
}

bool HcBridgeWritesBlocks(const ExecContext& ctx, int64_t streams, int64_t dim) {
  return SupportsCuda(ctx) && GpuHcKernels(ctx, 1, streams, dim) == HcKernels::kPrompt;
}

bool HcBridgeAddsSlots(const ExecContext& ctx, int64_t num_tokens, int64_t streams, int64_t dim, int64_t slots) {
  constexpr int64_t kMaxSlots = 8;
  // With D = 7,168 the choices do not fit in the registers of 15 warps: that is slower than the launch that it saves.
  return SupportsCuda(ctx) && !ctx.reference_ops && slots <= kMaxSlots && dim == 4096 &&
         GpuHcKernels(ctx, num_tokens, streams, dim) == HcKernels::kCluster;
}

bool HcBridgeSumsRanks(const ExecContext& ctx, int64_t num_tokens, int64_t streams, int64_t dim,
                       const QuantTensor& fn) {
  return SupportsCuda(ctx) && !ctx.reference_ops && ctx.ranks != nullptr && ctx.ranks->count > 1 &&
         ctx.ranks->transport == ExchangeTransport::kWords && fn.format == WeightFormat::kF32 &&
         GpuHcKernels(ctx, num_tokens, streams, dim) == HcKernels::kCluster;
}

std::string HcBridgeImplementation(const ExecContext& ctx, int64_t num_tokens, int64_t streams, int64_t dim) {
  if (!SupportsCuda(ctx)) return Choose(kHcBridgeCandidates, ctx).name;
  switch (GpuHcKernels(ctx, num_tokens, streams, dim)) {
    case HcKernels::kAny:
      return "DotsKernel, MixKernel";
    case HcKernels::kCluster:
      return "ClusterSiteKernel";
    case HcKernels::kPrompt:
      return "PrefillDotsKernel, PrefillMixesKernel, PrefillSumKernel";
  }
  return "";
}

OpImplementations DescribeHcBridge(const ExecContext& ctx) { return DescribeOp("hc_bridge", kHcBridgeCandidates, ctx); }

}  // namespace dsv4
