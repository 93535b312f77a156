#include "ops/rms_norm/rms_norm.h"

#include "ops/cpu_rows.h"
#include "ops/cuda_row.h"

namespace dsv4 {

void RmsNormRef(const ExecContext& ctx, const RmsNormArgs& a);
void RmsNormCuda(const ExecContext& ctx, const RmsNormArgs& a);
DSV4_DECLARE_CPU(RmsNormCpu, RmsNormArgs)

namespace {

constexpr Candidate<RmsNormArgs> kRmsNormCandidates[] = {
    DSV4_CUDA_ROW(RmsNormCuda, "RmsNormKernel") DSV4_CPU_ROWS(RmsNormCpu){"ref", SupportsCpu, RmsNormRef},
};

}  // namespace

void RmsNorm(const ExecContext& ctx, const RmsNormArgs& a) {
  DSV4_CHECK_EQ(a.x.num_elements(), a.y.num_elements());
  DSV4_CHECK_EQ(a.x.dim(1), a.y.dim(1));
  DSV4_CHECK(!a.weight || a.weight.dim(0) == a.x.dim(1), "weight of ", a.weight.num_elements());
  RunOp("rms_norm", kRmsNormCandidates, ctx, a);
}

OpImplementations DescribeRmsNorm(const ExecContext& ctx) { return DescribeOp("rms_norm", kRmsNormCandidates, ctx); }

}  // namespace dsv4
