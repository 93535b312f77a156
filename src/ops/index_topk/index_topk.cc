#include "ops/index_topk/index_topk.h"

namespace dsv4 {

void IndexTopkRef(const ExecContext& ctx, const IndexTopkArgs& a);
void IndexTopkCuda(const ExecContext& ctx, const IndexTopkArgs& a);
namespace generic {
void IndexTopkCpu(const ExecContext& ctx, const IndexTopkArgs& a);
}
#ifdef DSV4_HAVE_AVX2
namespace avx2 {
void IndexTopkCpu(const ExecContext& ctx, const IndexTopkArgs& a);
}
namespace avx512 {
void IndexTopkCpu(const ExecContext& ctx, const IndexTopkArgs& a);
}
#endif

namespace {

constexpr Candidate<IndexTopkArgs> kCandidates[] = {
    DSV4_CUDA_ROW(IndexTopkCuda)
#ifdef DSV4_HAVE_AVX2
    {"avx512", SupportsAvx512, avx512::IndexTopkCpu},
    {"avx2", SupportsAvx2, avx2::IndexTopkCpu},
#endif
    {"generic", SupportsCpu, generic::IndexTopkCpu},
    {"ref", SupportsCpu, IndexTopkRef},
};

}  // namespace

void IndexTopk(const ExecContext& ctx, const IndexTopkArgs& a) {
  DSV4_CHECK(a.cache.layer->index.ratio > 0);
  DSV4_CHECK_EQ(a.q.dim(0), a.cache.num_tokens);
  DSV4_CHECK_EQ(a.q.dim(2), a.cache.layer->index.dim);
  DSV4_CHECK_EQ(a.weights.dim(1), a.q.dim(1));
  DSV4_CHECK_EQ(a.topk_idxs.dim(0), a.q.dim(0));
  Choose(kCandidates, ctx).run(ctx, a);
}

OpImplementations DescribeIndexTopk(const ExecContext& ctx) { return DescribeOp("index_topk", kCandidates, ctx); }

}  // namespace dsv4
