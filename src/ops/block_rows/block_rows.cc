#include "ops/block_rows/block_rows.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void BlockRowsRef(const ExecContext& ctx, const BlockRowsArgs& a);
void BlockRowsCuda(const ExecContext& ctx, const BlockRowsArgs& a);

namespace {

constexpr Candidate<BlockRowsArgs> kBlockRowsCandidates[] = {
    DSV4_CUDA_ROW(BlockRowsCuda, "BlockRowsKernel"){"ref", SupportsCpu, BlockRowsRef},
};

}  // namespace

void BlockRows(const ExecContext& ctx, const BlockRowsArgs& a) {
  const int64_t rows = a.step_tokens.dim(0) * a.block;
  DSV4_CHECK(a.block > 0 && a.step_positions.dim(0) == a.step_tokens.dim(0));
  for (const Tensor* out : {&a.tokens, &a.positions, &a.last, &a.sequence_of, &a.by_place})
    DSV4_CHECK_EQ(out->dim(0), rows);
  DSV4_CHECK(a.sequences != a.blocks);
  RunOp("block_rows", kBlockRowsCandidates, ctx, a);
}

OpImplementations DescribeBlockRows(const ExecContext& ctx) {
  return DescribeOp("block_rows", kBlockRowsCandidates, ctx);
}

}  // namespace dsv4
