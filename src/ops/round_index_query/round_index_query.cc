#include "ops/round_index_query/round_index_query.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void RoundIndexQueryRef(const ExecContext& ctx, const RoundIndexQueryArgs& a);
void RoundIndexQueryCuda(const ExecContext& ctx, const RoundIndexQueryArgs& a);

namespace {

constexpr Candidate<RoundIndexQueryArgs> kRoundIndexQueryCandidates[] = {
    DSV4_CUDA_ROW(RoundIndexQueryCuda, "RotateAndRoundKernel"){"ref", SupportsCpu, RoundIndexQueryRef},
};

}  // namespace

void RoundIndexQuery(const ExecContext& ctx, const RoundIndexQueryArgs& a) {
  const int64_t di = a.q.dim(2);
  DSV4_CHECK((di & (di - 1)) == 0 && di % 32 == 0, "index head dim ", di);
  RunOp("round_index_query", kRoundIndexQueryCandidates, ctx, a);
}

OpImplementations DescribeRoundIndexQuery(const ExecContext& ctx) {
  return DescribeOp("round_index_query", kRoundIndexQueryCandidates, ctx);
}

}  // namespace dsv4
