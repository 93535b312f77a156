#include "ops/gather_shares/gather_shares.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void GatherSharesRef(const ExecContext& ctx, const GatherSharesArgs& a);
void GatherSharesCuda(const ExecContext& ctx, const GatherSharesArgs& a);

namespace {

constexpr Candidate<GatherSharesArgs> kGatherSharesCandidates[] = {
    DSV4_CUDA_ROW(GatherSharesCuda, "GatherSharesKernel")
    {"ref", SupportsCpu, GatherSharesRef},
};

}  // namespace

void GatherShares(const ExecContext& ctx, const GatherSharesArgs& a) {
  if (ShareExchanges(ctx, a.y) == 0) return;
  DSV4_CHECK(IsRankCount(ctx.ranks->count), ctx.ranks->count, " ranks");
  RunOp("gather_shares", kGatherSharesCandidates, ctx, a);
}

OpImplementations DescribeGatherShares(const ExecContext& ctx) {
  return DescribeOp("gather_shares", kGatherSharesCandidates, ctx);
}

}  // namespace dsv4
