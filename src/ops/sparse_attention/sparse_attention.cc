#include "ops/sparse_attention/sparse_attention.h"

#include "ops/rope/rope.h"

namespace dsv4 {

void SparseAttentionRef(const ExecContext& ctx, const SparseAttentionArgs& a);
void SparseAttentionCuda(const ExecContext& ctx, const SparseAttentionArgs& a);
namespace generic {
void SparseAttentionCpu(const ExecContext& ctx, const SparseAttentionArgs& a);
}
#ifdef DSV4_HAVE_AVX2
namespace avx2 {
void SparseAttentionCpu(const ExecContext& ctx, const SparseAttentionArgs& a);
}
namespace avx512 {
void SparseAttentionCpu(const ExecContext& ctx, const SparseAttentionArgs& a);
}
#endif

namespace {

constexpr Candidate<SparseAttentionArgs> kCandidates[] = {
    DSV4_CUDA_ROW(SparseAttentionCuda)
#ifdef DSV4_HAVE_AVX2
    {"avx512", SupportsAvx512, avx512::SparseAttentionCpu},
    {"avx2", SupportsAvx2, avx2::SparseAttentionCpu},
#endif
    {"generic", SupportsCpu, generic::SparseAttentionCpu},
    {"ref", SupportsCpu, SparseAttentionRef},
};

}  // namespace

void SparseAttention(const ExecContext& ctx, const SparseAttentionArgs& a) {
  DSV4_CHECK_EQ(a.q.dim(0), a.cache.num_tokens);
  DSV4_CHECK_EQ(a.kv.dim(0), a.cache.num_tokens);
  DSV4_CHECK_EQ(a.q.dim(2), a.kv.dim(1));
  DSV4_CHECK_EQ(a.sink.dim(0), a.q.dim(1));
  DSV4_CHECK(a.q.data != a.out.data);
  Choose(kCandidates, ctx).run(ctx, a);
  if (a.cos_sin && ctx.device == DeviceKind::kCpu) Rope(ctx, {.x = a.out, .cos_sin = a.cos_sin, .inverse = true});
}

OpImplementations DescribeSparseAttention(const ExecContext& ctx) { return DescribeOp("sparse_attention", kCandidates, ctx); }

}  // namespace dsv4
