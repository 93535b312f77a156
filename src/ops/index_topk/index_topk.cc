#include "ops/index_topk/index_topk.h"

#include "ops/cpu_rows.h"

namespace dsv4 {

void IndexTopkRef(const ExecContext& ctx, const IndexTopkArgs& a);
void IndexTopkCuda(const ExecContext& ctx, const IndexTopkArgs& a);
DSV4_DECLARE_CPU(IndexTopkCpu, IndexTopkArgs)

namespace {

constexpr Candidate<IndexTopkArgs> kIndexTopkCandidates[] = {
    DSV4_CUDA_ROW(IndexTopkCuda)
    DSV4_CPU_ROWS(IndexTopkCpu)
    {"ref", SupportsCpu, IndexTopkRef},
};

}  // namespace

void IndexTopk(const ExecContext& ctx, const IndexTopkArgs& a) {
  DSV4_CHECK(a.cache.layer->index.ratio > 0);
  DSV4_CHECK_EQ(a.q.dim(0), a.cache.num_tokens);
  DSV4_CHECK_EQ(a.q.dim(2), a.cache.layer->index.dim);
  DSV4_CHECK_EQ(a.weights.dim(1), a.q.dim(1));
  DSV4_CHECK_EQ(a.topk_idxs.dim(0), a.q.dim(0));
  RunOp("index_topk", kIndexTopkCandidates, ctx, a);
}

OpImplementations DescribeIndexTopk(const ExecContext& ctx) { return DescribeOp("index_topk", kIndexTopkCandidates, ctx); }

OpWork WorkOf(const IndexTopkArgs& a) {
  const CompressorLayout& keys = a.cache.layer->index;
  int64_t scored = 0, cached = 0;
  for (int64_t t = 0; t < a.cache.num_tokens; ++t) {
    const int64_t visible = (a.cache.positions[t] + 1) / keys.ratio;
    scored += visible;
    if (a.cache.sequence(t).end == t + 1) cached += visible;  // the last token of a sequence sees what the others see
  }
  return {.bytes = static_cast<double>(cached * keys.row.row_bytes()),
          .products = static_cast<double>(scored * a.q.dim(1) * a.q.dim(2))};
}

}  // namespace dsv4
