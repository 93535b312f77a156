#include "ops/pack_weight/pack_weight.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void PackWeightRef(const ExecContext& ctx, const PackWeightArgs& a);
void PackWeightCuda(const ExecContext& ctx, const PackWeightArgs& a);

namespace {

constexpr Candidate<PackWeightArgs> kPackWeightCandidates[] = {
    DSV4_CUDA_ROW(PackWeightCuda, "PackTilesKernel"){"ref", SupportsCpu, PackWeightRef},
};

}  // namespace

void PackWeight(const ExecContext& ctx, const PackWeightArgs& a) {
  DSV4_CHECK(a.w.layout == WeightLayout::kRows && a.w.format != WeightFormat::kF32);
  DSV4_CHECK(a.w.scale_row_offset % kTileRows16 == 0, "scale row offset ", a.w.scale_row_offset);
  RunOp("pack_weight", kPackWeightCandidates, ctx, a);
}

OpImplementations DescribePackWeight(const ExecContext& ctx) {
  return DescribeOp("pack_weight", kPackWeightCandidates, ctx);
}

}  // namespace dsv4
