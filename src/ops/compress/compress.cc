#include "ops/compress/compress.h"

namespace dsv4 {

void CompressRef(const ExecContext& ctx, const CompressArgs& a);
void CompressCuda(const ExecContext& ctx, const CompressArgs& a);
namespace generic {
void CompressCpu(const ExecContext& ctx, const CompressArgs& a);
}
#ifdef DSV4_HAVE_AVX2
namespace avx2 {
void CompressCpu(const ExecContext& ctx, const CompressArgs& a);
}
namespace avx512 {
void CompressCpu(const ExecContext& ctx, const CompressArgs& a);
}
#endif

namespace {

constexpr Candidate<CompressArgs> kCandidates[] = {
    DSV4_CUDA_ROW(CompressCuda)
#ifdef DSV4_HAVE_AVX2
    {"avx512", SupportsAvx512, avx512::CompressCpu},
    {"avx2", SupportsAvx2, avx2::CompressCpu},
#endif
    {"generic", SupportsCpu, generic::CompressCpu},
    {"ref", SupportsCpu, CompressRef},
};

}  // namespace

void Compress(const ExecContext& ctx, const CompressArgs& a) {
  DSV4_CHECK(a.layout != nullptr && a.layout->ratio > 0);
  const int64_t width = a.layout->overlap * a.layout->dim;
  DSV4_CHECK_EQ(a.values.dim(0), a.cache.num_tokens);
  DSV4_CHECK(a.values.dim(1) == width && a.gates.dim(1) == width && a.slot_bias.dim(1) == width);
  DSV4_CHECK(a.slot_bias.dim(0) == a.layout->ratio && a.norm.dim(0) == a.layout->dim);
  RunOp("compress", kCandidates, ctx, a);
}

OpImplementations DescribeCompress(const ExecContext& ctx) { return DescribeOp("compress", kCandidates, ctx); }

}  // namespace dsv4
