#include "ops/sparse_attention/sparse_attention.h"

#include "ops/cpu_rows.h"
#include "ops/rope/rope.h"
#include "ops/sparse_attention/rows.h"

namespace dsv4 {

void SparseAttentionRef(const ExecContext& ctx, const SparseAttentionArgs& a);
void SparseAttentionCuda(const ExecContext& ctx, const SparseAttentionArgs& a);
DSV4_DECLARE_CPU(SparseAttentionCpu, SparseAttentionArgs)

namespace {

constexpr Candidate<SparseAttentionArgs> kSparseAttentionCandidates[] = {
    DSV4_CUDA_ROW(SparseAttentionCuda)
    DSV4_CPU_ROWS(SparseAttentionCpu)
    {"ref", SupportsCpu, SparseAttentionRef},
};

}  // namespace

void SparseAttention(const ExecContext& ctx, const SparseAttentionArgs& a) {
  DSV4_CHECK_EQ(a.q.dim(0), a.cache.num_tokens);
  DSV4_CHECK_EQ(a.kv.dim(0), a.cache.num_tokens);
  DSV4_CHECK_EQ(a.q.dim(2), a.kv.dim(1));
  DSV4_CHECK_EQ(a.sink.dim(0), a.q.dim(1));
  DSV4_CHECK(a.q.data != a.out.data);
  DSV4_CHECK((a.out_blocks == nullptr && a.queries.blocks == nullptr) || SparseAttentionWritesBlocks(ctx, a));
  RunOp("sparse_attention", kSparseAttentionCandidates, ctx, a);
  if (a.cos_sin && ctx.device == DeviceKind::kCpu) Rope(ctx, {.x = a.out, .cos_sin = a.cos_sin, .inverse = true});
}

OpImplementations DescribeSparseAttention(const ExecContext& ctx) { return DescribeOp("sparse_attention", kSparseAttentionCandidates, ctx); }

OpWork WorkOf(const SparseAttentionArgs& a) {
  int64_t rows = 0, cached = 0;
  for (int64_t t = 0; t < a.cache.num_tokens; ++t) {
    rows += AttendedRows(a, t).size();
    if (a.cache.sequence(t).end == t + 1) cached += AttendedRows(a, t).size();  // the last token of a sequence stands for the others
  }
  return {.bytes = static_cast<double>(cached * a.cache.layer->window_row.row_bytes()),
          .products = static_cast<double>(2 * rows * a.q.dim(1) * a.q.dim(2))};
}

}  // namespace dsv4
