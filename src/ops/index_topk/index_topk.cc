#include "ops/index_topk/index_topk.h"

#include "ops/cpu_rows.h"
#include "ops/cuda_row.h"

namespace dsv4 {

void IndexTopkRef(const ExecContext& ctx, const IndexTopkArgs& a);
void IndexTopkCuda(const ExecContext& ctx, const IndexTopkArgs& a);
DSV4_DECLARE_CPU(IndexTopkCpu, IndexTopkArgs)

namespace {

constexpr Candidate<IndexTopkArgs> kIndexTopkCandidates[] = {
    DSV4_CUDA_ROW(IndexTopkCuda, "ScoreOneKernel, ScoreKernel, PlainScoreKernel")
        DSV4_CPU_ROWS(IndexTopkCpu){"ref", SupportsCpu, IndexTopkRef},
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

bool ScoresOnTensorCores(int64_t heads, const CompressorLayout& keys) {
  constexpr int64_t kDim = 128, kMaxHeads = 64, kWarpKeys = 32;
  const bool format = keys.row.kind == RowFormat::Kind::kFp4 || keys.row.kind == RowFormat::Kind::kBf16;
  return keys.dim == kDim && heads <= kMaxHeads && format && keys.rows_per_page % kWarpKeys == 0;
}

std::string IndexTopkImplementation(const ExecContext& ctx, int64_t num_tokens, int64_t heads,
                                    const CompressorLayout& keys) {
  if (!SupportsCuda(ctx)) return Choose(kIndexTopkCandidates, ctx).name;
  if (!ScoresOnTensorCores(heads, keys)) return "PlainScoreKernel";
  return num_tokens == 1 && keys.row.kind == RowFormat::Kind::kFp4 ? "ScoreOneKernel" : "ScoreKernel";
}

OpImplementations DescribeIndexTopk(const ExecContext& ctx) {
  return DescribeOp("index_topk", kIndexTopkCandidates, ctx);
}

OpWork WorkOf(const IndexTopkArgs& a) {
  const CompressorLayout& keys = a.cache.layer->index;
  int64_t scored = 0, cached = 0;
  for (int64_t t = 0; t < a.cache.num_tokens; ++t) {
    const int64_t visible = (a.cache.positions[t] + 1) / keys.ratio;
    scored += visible;
    const bool last = t + 1 == a.cache.num_tokens || a.cache.sequence_of[t + 1] != a.cache.sequence_of[t];
    if (last) cached += visible;  // the last token of a sequence sees all rows that the others see
  }
  return {.bytes = static_cast<double>(cached * keys.row.row_bytes()),
          .products = static_cast<double>(scored * a.q.dim(1) * a.q.dim(2))};
}

}  // namespace dsv4
