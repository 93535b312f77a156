#include "ops/sum_ranks/sum_ranks.h"

#include "ops/cpu_rows.h"
#include "ops/cuda_row.h"

namespace dsv4 {

void SumRanksRef(const ExecContext& ctx, const SumRanksArgs& a);
void SumRanksCuda(const ExecContext& ctx, const SumRanksArgs& a);
DSV4_DECLARE_CPU(SumRanksCpu, SumRanksArgs)

namespace {

constexpr Candidate<SumRanksArgs> kSumRanksCandidates[] = {
    DSV4_CUDA_ROW(SumRanksCuda, "ExchangeKernel, ScatterSumKernel, ArrivedKernel")
        DSV4_CPU_ROWS(SumRanksCpu){"ref", SupportsCpu, SumRanksRef},
};

}  // namespace

void SumRanks(const ExecContext& ctx, const SumRanksArgs& a) {
  if (RankExchanges(ctx, a.y.num_elements()) == 0) return;
  DSV4_CHECK(IsRankCount(ctx.ranks->count), ctx.ranks->count, " ranks");
  RunOp("sum_ranks", kSumRanksCandidates, ctx, a);
}

OpImplementations DescribeSumRanks(const ExecContext& ctx) { return DescribeOp("sum_ranks", kSumRanksCandidates, ctx); }

}  // namespace dsv4
