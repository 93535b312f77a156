#include "ops/round_kv/round_kv.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void RoundKvRef(const ExecContext& ctx, const RoundKvArgs& a);
void RoundKvCuda(const ExecContext& ctx, const RoundKvArgs& a);

namespace {

constexpr Candidate<RoundKvArgs> kRoundKvCandidates[] = {
    DSV4_CUDA_ROW(RoundKvCuda, "RoundKvKernel"){"ref", SupportsCpu, RoundKvRef},
};

}  // namespace

void RoundKv(const ExecContext& ctx, const RoundKvArgs& a) {
  DSV4_CHECK_EQ(a.kv.dim(1), a.format.dim);
  RunOp("round_kv", kRoundKvCandidates, ctx, a);
}

OpImplementations DescribeRoundKv(const ExecContext& ctx) { return DescribeOp("round_kv", kRoundKvCandidates, ctx); }

}  // namespace dsv4
