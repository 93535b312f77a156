#include "ops/rope_angles/rope_angles.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void RopeAnglesRef(const ExecContext& ctx, const RopeAnglesArgs& a);
void RopeAnglesCuda(const ExecContext& ctx, const RopeAnglesArgs& a);

namespace {

constexpr Candidate<RopeAnglesArgs> kRopeAnglesCandidates[] = {
    DSV4_CUDA_ROW(RopeAnglesCuda, "RopeAnglesKernel"){"ref", SupportsCpu, RopeAnglesRef},
};

}  // namespace

void RopeAngles(const ExecContext& ctx, const RopeAnglesArgs& a) {
  DSV4_CHECK_EQ(a.positions.dim(0), a.cos_sin.dim(0));
  DSV4_CHECK_EQ(a.frequencies.dim(0), a.cos_sin.dim(1));
  RunOp("rope_angles", kRopeAnglesCandidates, ctx, a);
}

OpImplementations DescribeRopeAngles(const ExecContext& ctx) {
  return DescribeOp("rope_angles", kRopeAnglesCandidates, ctx);
}

}  // namespace dsv4
