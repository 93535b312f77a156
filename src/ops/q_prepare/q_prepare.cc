#include "ops/q_prepare/q_prepare.h"

#include "ops/cuda_row.h"
#include "ops/pack_weight/pack_weight.h"
#include "ops/q_prepare/expand.h"

namespace dsv4 {

void QPrepareRef(const ExecContext& ctx, const QPrepareArgs& a);
void QPrepareCuda(const ExecContext& ctx, const QPrepareArgs& a);

namespace {

constexpr Candidate<QPrepareArgs> kQPrepareCandidates[] = {
    DSV4_CUDA_ROW(QPrepareCuda, "ExpandKernel, ExpandPartKernel, QPrepareKernel"){"ref", SupportsCpu, QPrepareRef},
};

}  // namespace

void QPrepare(const ExecContext& ctx, const QPrepareArgs& a) {
  const int64_t t = a.cos_sin.dim(0);
  DSV4_CHECK(!a.q || (a.q.dim(0) == t && a.q.dim(2) >= 2 * a.cos_sin.dim(1)));
  DSV4_CHECK(!a.kv ||
             (a.kv.dim(0) == t && a.kv.dim(1) == a.cache.layer->window_row.dim && a.kv_norm.dim(0) == a.kv.dim(1)));
  DSV4_CHECK(!a.append || (a.kv && a.cache.num_tokens == t));
  DSV4_CHECK(a.num_compress == 0 || (a.append && a.num_compress <= 2));
  DSV4_CHECK(a.expands == nullptr || QPrepareExpands(ctx, ShapeOf(a, *a.expands)));
  if (a.index_q) {
    const int64_t di = a.index_q.dim(2);
    DSV4_CHECK(a.index_q.dim(0) == t && di >= 2 * a.cos_sin.dim(1) && (di & (di - 1)) == 0 && di % 32 == 0,
               "index head dim ", di);
  }
  RunOp("q_prepare", kQPrepareCandidates, ctx, a);
}

ExpandShape ShapeOf(const QPrepareArgs& a, const LinearArgs& linears) {
  ExpandShape s{.num_tokens = a.q.dim(0),
                .num_sequences = a.cache.num_sequences,
                .append = a.append,
                .heads = a.q.dim(1),
                .head_dim = a.q.dim(2),
                .rope_dim = 2 * a.cos_sin.dim(1),
                .num_compress = a.num_compress,
                .q_b = linears.parts[0].w};
  if (a.index_q)
    s.index_heads = a.index_q.dim(1), s.index_head_dim = a.index_q.dim(2), s.index_q_b = linears.parts[1].w;
  return s;
}

bool QPrepareExpands(const ExecContext& ctx, const ExpandShape& s) {
  using namespace q_prepare;
  if (!SupportsCuda(ctx) || ctx.regime != Regime::kDecode || ctx.reference_ops || ctx.f32_inputs) return false;
  const bool indexes = s.index_heads > 0;
  const auto takes = [](const QuantTensor& w, int64_t rows) { return w.format == kFormat && w.rows == rows; };
  const bool tokens = s.num_tokens == 1 || (s.num_tokens <= kMostTokens && s.num_sequences == 1);
  const bool shape = tokens && s.append && s.head_dim == kHead && s.rope_dim <= 64 &&
                     (!indexes || s.index_head_dim == kIndexHead);
  const bool weights = takes(s.q_b, s.heads * kHead) && s.q_b.cols <= kMaxCols && s.q_b.cols % 8 == 0 &&
                       (!indexes || takes(s.index_q_b, s.index_heads * kIndexHead));
  if (!shape || !weights) return false;
  const ExpandCut cut = CutOf(ctx, s);
  const bool fits = !cut.along_k || (CeilDiv(s.q_b.cols, kTileCols64) >= kMinCutTiles &&
                                     (s.num_tokens == 1 || s.q_b.cols <= kMaxFewCutCols));
  return cut.blocks <= ctx.gpu.multiprocessors && fits;
}

std::string QPrepareImplementation(const ExecContext& ctx, const ExpandShape* expands) {
  if (!SupportsCuda(ctx)) return Choose(kQPrepareCandidates, ctx).name;
  if (expands == nullptr) return "QPrepareKernel";
  return q_prepare::CutOf(ctx, *expands).part ? "ExpandPartKernel" : "ExpandKernel";
}

OpImplementations DescribeQPrepare(const ExecContext& ctx) { return DescribeOp("q_prepare", kQPrepareCandidates, ctx); }

}  // namespace dsv4
