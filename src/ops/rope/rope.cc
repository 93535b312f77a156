#include "ops/rope/rope.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void RopeRef(const ExecContext& ctx, const RopeArgs& a);
void RopeCuda(const ExecContext& ctx, const RopeArgs& a);

namespace {

constexpr Candidate<RopeArgs> kRopeCandidates[] = {
    DSV4_CUDA_ROW(RopeCuda, "RopeKernel"){"ref", SupportsCpu, RopeRef},
};

}  // namespace

void Rope(const ExecContext& ctx, const RopeArgs& a) {
  DSV4_CHECK_EQ(a.x.dim(0), a.cos_sin.dim(0));
  DSV4_CHECK(2 * a.cos_sin.dim(1) <= a.x.dim(2));
  RunOp("rope", kRopeCandidates, ctx, a);
}

OpImplementations DescribeRope(const ExecContext& ctx) { return DescribeOp("rope", kRopeCandidates, ctx); }

}  // namespace dsv4
