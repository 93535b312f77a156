#include "ops/gather_rows/gather_rows.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void GatherRowsRef(const ExecContext& ctx, const GatherRowsArgs& a);
void GatherRowsCuda(const ExecContext& ctx, const GatherRowsArgs& a);

namespace {

constexpr Candidate<GatherRowsArgs> kGatherRowsCandidates[] = {
    DSV4_CUDA_ROW(GatherRowsCuda, "GatherRowsKernel"){"ref", SupportsCpu, GatherRowsRef},
};

}  // namespace

void GatherRows(const ExecContext& ctx, const GatherRowsArgs& a) {
  DSV4_CHECK_EQ(a.rows.dim(0), a.out.dim(0));
  DSV4_CHECK(a.x.data != a.out.data);
  RunOp("gather_rows", kGatherRowsCandidates, ctx, a);
}

OpImplementations DescribeGatherRows(const ExecContext& ctx) {
  return DescribeOp("gather_rows", kGatherRowsCandidates, ctx);
}

}  // namespace dsv4
