#include "ops/hc_pre/hc_pre.h"

#include "ops/cpu_rows.h"
#include "ops/cuda_row.h"
#include "ops/hc_pre/streams.h"

namespace dsv4 {

void HcPreRef(const ExecContext& ctx, const HcPreArgs& a);
void HcPreCuda(const ExecContext& ctx, const HcPreArgs& a);
DSV4_DECLARE_CPU(HcPreCpu, HcPreArgs)

namespace {

constexpr Candidate<HcPreArgs> kHcPreCandidates[] = {
    DSV4_CUDA_ROW(HcPreCuda, "ClusterSiteKernel, DotsKernel, PrefillDotsKernel")
        DSV4_CPU_ROWS(HcPreCpu){"ref", SupportsCpu, HcPreRef},
};

}  // namespace

void HcPre(const ExecContext& ctx, const HcPreArgs& a) {
  const int64_t h = a.streams.dim(1);
  DSV4_CHECK(h <= kMaxStreams, "streams ", h);
  DSV4_CHECK(a.fn.rows == (2 + h) * h && a.fn.cols == h * a.streams.dim(2) && !a.fn.quantised());
  DSV4_CHECK(a.base.dim(0) == (2 + h) * h && a.scale.dim(0) == 3 && a.iters >= 1);
  RunOp("hc_pre", kHcPreCandidates, ctx, a);
}

HcKernels GpuHcKernels(const ExecContext& ctx, int64_t num_tokens, int64_t streams, int64_t dim) {
  constexpr int64_t kPromptColumns = 256, kMostPromptColumns = 8192;  // per block; per two rounds of a block's threads
  constexpr int kClusterBlocks = 16;
  if (streams != 4) return HcKernels::kAny;
  if (ctx.regime != Regime::kDecode)
    return dim % kPromptColumns == 0 && dim <= kMostPromptColumns ? HcKernels::kPrompt : HcKernels::kAny;
  const bool released = dim == 4096 || dim == 7168;
  return released && num_tokens <= kMaxClusterTokens && ctx.gpu.cluster_blocks >= kClusterBlocks ? HcKernels::kCluster
                                                                                                 : HcKernels::kAny;
}

OpImplementations DescribeHcPre(const ExecContext& ctx) { return DescribeOp("hc_pre", kHcPreCandidates, ctx); }

OpWork WorkOf(const HcPreArgs& a) {
  return {.bytes = static_cast<double>(FileBytes(a.fn) + a.streams.num_bytes()),
          .products = static_cast<double>(a.streams.dim(0) * a.fn.rows * a.fn.cols)};
}

}  // namespace dsv4
