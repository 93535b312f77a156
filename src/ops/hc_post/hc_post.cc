#include "ops/hc_post/hc_post.h"

#include "ops/cpu_rows.h"
#include "ops/cuda_row.h"
#include "ops/hc_pre/streams.h"

namespace dsv4 {

void HcPostRef(const ExecContext& ctx, const HcPostArgs& a);
void HcPostCuda(const ExecContext& ctx, const HcPostArgs& a);
DSV4_DECLARE_CPU(HcPostCpu, HcPostArgs)

namespace {

constexpr Candidate<HcPostArgs> kHcPostCandidates[] = {
    DSV4_CUDA_ROW(HcPostCuda, "HcPostKernel") DSV4_CPU_ROWS(HcPostCpu){"ref", SupportsCpu, HcPostRef},
};

}  // namespace

void HcPost(const ExecContext& ctx, const HcPostArgs& a) {
  DSV4_CHECK(a.streams.dim(1) <= kMaxStreams, "streams ", a.streams.dim(1));
  DSV4_CHECK_EQ(a.y.dim(1), a.streams.dim(2));
  DSV4_CHECK_EQ(a.comb.num_elements(), a.streams.dim(0) * a.streams.dim(1) * a.streams.dim(1));
  RunOp("hc_post", kHcPostCandidates, ctx, a);
}

OpImplementations DescribeHcPost(const ExecContext& ctx) { return DescribeOp("hc_post", kHcPostCandidates, ctx); }

}  // namespace dsv4
