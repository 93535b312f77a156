#include "ops/previous_rows/previous_rows.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void PreviousRowsRef(const ExecContext& ctx, const PreviousRowsArgs& a);
void PreviousRowsCuda(const ExecContext& ctx, const PreviousRowsArgs& a);

namespace {

constexpr Candidate<PreviousRowsArgs> kPreviousRowsCandidates[] = {
    DSV4_CUDA_ROW(PreviousRowsCuda, "PreviousRowsKernel"){"ref", SupportsCpu, PreviousRowsRef},
};

}  // namespace

void PreviousRows(const ExecContext& ctx, const PreviousRowsArgs& a) {
  DSV4_CHECK(a.x || a.y);
  DSV4_CHECK(!a.x || !a.y || a.x.num_elements() == a.y.num_elements());
  DSV4_CHECK(a.x || a.y.dim(0) == a.num_sequences);
  DSV4_CHECK(a.slots > 0);
  RunOp("previous_rows", kPreviousRowsCandidates, ctx, a);
}

OpImplementations DescribePreviousRows(const ExecContext& ctx) {
  return DescribeOp("previous_rows", kPreviousRowsCandidates, ctx);
}

}  // namespace dsv4
