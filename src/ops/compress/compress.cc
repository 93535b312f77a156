#include "ops/compress/compress.h"

#include "ops/cpu_rows.h"
#include "ops/cuda_row.h"

namespace dsv4 {

void CompressRef(const ExecContext& ctx, const CompressArgs& a);
void CompressCuda(const ExecContext& ctx, const CompressArgs& a);
DSV4_DECLARE_CPU(CompressCpu, CompressArgs)

namespace {

constexpr Candidate<CompressArgs> kCompressCandidates[] = {
    DSV4_CUDA_ROW(CompressCuda, "CompressStepKernel, CompressEmitKernel, CompressKeepKernel")
        DSV4_CPU_ROWS(CompressCpu){"ref", SupportsCpu, CompressRef},
};

}  // namespace

void Compress(const ExecContext& ctx, const CompressArgs& a) {
  DSV4_CHECK(a.layout != nullptr && a.layout->ratio > 0);
  const int64_t width = a.layout->overlap * a.layout->dim;
  DSV4_CHECK_EQ(a.values.dim(0), a.cache.num_tokens);
  DSV4_CHECK(a.values.dim(1) == width && a.gates.dim(1) == width && a.slot_bias.dim(1) == width);
  DSV4_CHECK(a.slot_bias.dim(0) == a.layout->ratio && a.norm.dim(0) == a.layout->dim);
  RunOp("compress", kCompressCandidates, ctx, a);
}

std::string CompressImplementation(const ExecContext& ctx, bool one_each) {
  if (!SupportsCuda(ctx)) return Choose(kCompressCandidates, ctx).name;
  return one_each ? "CompressStepKernel" : "CompressEmitKernel, CompressKeepKernel";
}

OpImplementations DescribeCompress(const ExecContext& ctx) { return DescribeOp("compress", kCompressCandidates, ctx); }

}  // namespace dsv4
