#include "ops/fill_weight/fill_weight.h"

#include "ops/cuda_row.h"
#include "tensor/codec/fp4.h"
#include "tensor/codec/fp8.h"

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

int FillTightBase(float std) { return CeilLog2(std * kFillSpread * kFillRange / kE2m1Max) - kFillSpan; }

void SetFillScales(QuantTensor* w, float std) {
  const bool tight = IsTight(w->format);
  w->exponent_base = static_cast<int16_t>(tight ? FillTightBase(std) : 0);
  w->global_scale = !InfoOf(w->format).global_scale ? 1.0f : tight ? Exp2Int(w->exponent_base) : FillGlobalScale(std);
}

void FillWeight(const ExecContext& ctx, const FillWeightArgs& a) {
  DSV4_CHECK(a.w.layout == WeightLayout::kRows && a.codes == a.w.codes && a.block_scale == a.w.block_scale);
  QuantTensor want = a.w;
  SetFillScales(&want, a.std);
  DSV4_CHECK(a.w.global_scale == want.global_scale && a.w.exponent_base == want.exponent_base, "scales of the matrix");
  DSV4_CHECK(!IsTight(a.w.format) || a.w.cols % kMxfp4BlockSize == 0, a.w.cols, " columns");
  DSV4_CHECK_EQ(a.w.scale_row_offset, 0);
  RunOp("fill_weight", kFillWeightCandidates, ctx, a);
}

OpImplementations DescribeFillWeight(const ExecContext& ctx) {
  return DescribeOp("fill_weight", kFillWeightCandidates, ctx);
}

}  // namespace dsv4
