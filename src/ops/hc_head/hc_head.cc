#include "ops/hc_head/hc_head.h"

#include "ops/cpu_rows.h"
#include "ops/cuda_row.h"
#include "ops/hc_pre/streams.h"

namespace dsv4 {

void HcHeadRef(const ExecContext& ctx, const HcHeadArgs& a);
void HcHeadCuda(const ExecContext& ctx, const HcHeadArgs& a);
DSV4_DECLARE_CPU(HcHeadCpu, HcHeadArgs)

namespace {

constexpr Candidate<HcHeadArgs> kHcHeadCandidates[] = {
    DSV4_CUDA_ROW(HcHeadCuda, "DotsKernel, MixKernel") DSV4_CPU_ROWS(HcHeadCpu){"ref", SupportsCpu, HcHeadRef},
};

}  // namespace

void HcHead(const ExecContext& ctx, const HcHeadArgs& a) {
  const int64_t h = a.streams.dim(1);
  DSV4_CHECK(h <= kMaxStreams, "streams ", h);
  DSV4_CHECK(a.fn.rows == h && a.fn.cols == h * a.streams.dim(2) && !a.fn.quantised());
  DSV4_CHECK(a.base.dim(0) == h && a.scale.dim(0) == 1);
  RunOp("hc_head", kHcHeadCandidates, ctx, a);
}

OpImplementations DescribeHcHead(const ExecContext& ctx) { return DescribeOp("hc_head", kHcHeadCandidates, ctx); }

OpWork WorkOf(const HcHeadArgs& a) {
  return {.bytes = static_cast<double>(FileBytes(a.fn) + a.streams.num_bytes()),
          .products = static_cast<double>(a.streams.dim(0) * a.fn.rows * a.fn.cols)};
}

}  // namespace dsv4
