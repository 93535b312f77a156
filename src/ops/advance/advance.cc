#include "ops/advance/advance.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void AdvanceRef(const ExecContext& ctx, const AdvanceArgs& a);
void AdvanceCuda(const ExecContext& ctx, const AdvanceArgs& a);

namespace {

constexpr Candidate<AdvanceArgs> kAdvanceCandidates[] = {
    DSV4_CUDA_ROW(AdvanceCuda, "AdvanceKernel"){"ref", SupportsCpu, AdvanceRef},
};

}  // namespace

void Advance(const ExecContext& ctx, const AdvanceArgs& a) {
  const int64_t s = a.sampled.dim(0);
  DSV4_CHECK(a.tokens.dim(0) == s && a.positions.dim(0) == s);
  DSV4_CHECK(!a.history || (a.history.dim(0) == s && a.counts && a.counts.dim(0) == s));
  RunOp("advance", kAdvanceCandidates, ctx, a);
}

OpImplementations DescribeAdvance(const ExecContext& ctx) { return DescribeOp("advance", kAdvanceCandidates, ctx); }

}  // namespace dsv4
