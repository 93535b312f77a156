#include "ops/fill_weight/fill_weight.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void FillWeightRef(const ExecContext& ctx, const FillWeightArgs& a);
void FillWeightCuda(const ExecContext& ctx, const FillWeightArgs& a);
namespace generic {
void FillWeightCpu(const ExecContext& ctx, const FillWeightArgs& a);
}
#ifdef DSV4_HAVE_AVX2
namespace avx2 {
void FillWeightCpu(const ExecContext& ctx, const FillWeightArgs& a);
}
#endif

namespace {

constexpr Candidate<FillWeightArgs> kFillWeightCandidates[] = {
    DSV4_CUDA_ROW(FillWeightCuda, "FillKernel")
#ifdef DSV4_HAVE_AVX2
    {"avx2", SupportsAvx2, avx2::FillWeightCpu},
#endif
    {"generic", SupportsCpu, generic::FillWeightCpu},
    {"ref", SupportsCpu, FillWeightRef},
};

}  // namespace

void FillWeight(const ExecContext& ctx, const FillWeightArgs& a) {
  DSV4_CHECK(a.w.layout == WeightLayout::kRows && a.codes == a.w.codes && a.block_scale == a.w.block_scale);
  DSV4_CHECK(a.w.format != WeightFormat::kNvfp4 || a.w.global_scale == FillGlobalScale(a.std));
  DSV4_CHECK_EQ(a.w.scale_row_offset, 0);
  RunOp("fill_weight", kFillWeightCandidates, ctx, a);
}

OpImplementations DescribeFillWeight(const ExecContext& ctx) {
  return DescribeOp("fill_weight", kFillWeightCandidates, ctx);
}

}  // namespace dsv4
