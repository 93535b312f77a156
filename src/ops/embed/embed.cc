#include "ops/embed/embed.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void EmbedRef(const ExecContext& ctx, const EmbedArgs& a);
void EmbedCuda(const ExecContext& ctx, const EmbedArgs& a);

namespace {

constexpr Candidate<EmbedArgs> kEmbedCandidates[] = {
    DSV4_CUDA_ROW(EmbedCuda, "EmbedKernel"){"ref", SupportsCpu, EmbedRef},
};

}  // namespace

void Embed(const ExecContext& ctx, const EmbedArgs& a) {
  DSV4_CHECK(a.table.format == WeightFormat::kBf16 || a.table.format == WeightFormat::kF32, "embedding table format");
  DSV4_CHECK_EQ(a.tokens.dim(0), a.streams.dim(0));
  DSV4_CHECK_EQ(a.table.cols, a.streams.dim(2));
  RunOp("embed", kEmbedCandidates, ctx, a);
}

OpImplementations DescribeEmbed(const ExecContext& ctx) { return DescribeOp("embed", kEmbedCandidates, ctx); }

}  // namespace dsv4
