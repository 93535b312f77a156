#include "ops/q_prepare/q_prepare.h"

namespace dsv4 {

void QPrepareRef(const ExecContext& ctx, const QPrepareArgs& a);
void QPrepareCuda(const ExecContext& ctx, const QPrepareArgs& a);

namespace {

constexpr Candidate<QPrepareArgs> kQPrepareCandidates[] = {
    DSV4_CUDA_ROW(QPrepareCuda)
    {"ref", SupportsCpu, QPrepareRef},
};

}  // namespace

void QPrepare(const ExecContext& ctx, const QPrepareArgs& a) {
  const int64_t t = a.cos_sin.dim(0);
  DSV4_CHECK(!a.q || (a.q.dim(0) == t && a.q.dim(2) >= 2 * a.cos_sin.dim(1)));
  DSV4_CHECK(!a.kv || (a.kv.dim(0) == t && a.kv.dim(1) == a.cache.layer->window_row.dim && a.kv_norm.dim(0) == a.kv.dim(1)));
  DSV4_CHECK(!a.append || (a.kv && a.cache.num_tokens == t));
  DSV4_CHECK(a.num_compress == 0 || (a.append && a.num_compress <= 2));
  DSV4_CHECK(a.expands == nullptr || QPrepareExpands(ctx, a, *a.expands));
  if (a.index_q) {
    const int64_t di = a.index_q.dim(2);
    DSV4_CHECK(a.index_q.dim(0) == t && di >= 2 * a.cos_sin.dim(1) && (di & (di - 1)) == 0 && di % 32 == 0, "index head dim ", di);
  }
  RunOp("q_prepare", kQPrepareCandidates, ctx, a);
}

OpImplementations DescribeQPrepare(const ExecContext& ctx) { return DescribeOp("q_prepare", kQPrepareCandidates, ctx); }

}  // namespace dsv4
