#include "ops/gather_ranks/gather_ranks.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void GatherRanksRef(const ExecContext& ctx, const GatherRanksArgs& a);
void GatherRanksCuda(const ExecContext& ctx, const GatherRanksArgs& a);

namespace {

constexpr Candidate<GatherRanksArgs> kGatherRanksCandidates[] = {
    DSV4_CUDA_ROW(GatherRanksCuda, "ExchangeKernel, ArrivedKernel"){"ref", SupportsCpu, GatherRanksRef},
};

}  // namespace

void GatherRanks(const ExecContext& ctx, const GatherRanksArgs& a) {
  const int64_t count = ctx.ranks != nullptr ? ctx.ranks->count : 1;
  DSV4_CHECK_EQ(a.y.num_elements(), a.x.num_elements() * count);
  DSV4_CHECK_EQ(a.y.dim(0), a.x.dim(0));
  if (a.x.num_elements() == 0 || (count == 1 && a.x.data == a.y.data)) return;
  DSV4_CHECK(a.x.data != a.y.data);
  RunOp("gather_ranks", kGatherRanksCandidates, ctx, a);
}

OpImplementations DescribeGatherRanks(const ExecContext& ctx) {
  return DescribeOp("gather_ranks", kGatherRanksCandidates, ctx);
}

}  // namespace dsv4
