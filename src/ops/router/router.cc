#include "ops/router/router.h"

#include "ops/cuda_row.h"
#include "ops/router/router_one.h"

namespace dsv4 {

void RouterRef(const ExecContext& ctx, const RouterArgs& a);
void RouterCuda(const ExecContext& ctx, const RouterArgs& a);

namespace {

constexpr Candidate<RouterArgs> kRouterCandidates[] = {
    DSV4_CUDA_ROW(RouterCuda, "RouteOneKernel, RouterKernel"){"ref", SupportsCpu, RouterRef},
};

}  // namespace

void Router(const ExecContext& ctx, const RouterArgs& a) {
  DSV4_CHECK(static_cast<bool>(a.hash_table) != static_cast<bool>(a.bias), "one of hash table and bias");
  DSV4_CHECK_EQ(a.logits.dim(0), a.experts.dim(0));
  DSV4_CHECK(a.experts.dim(1) - (a.always >= 0 ? 1 : 0) <= a.logits.dim(1) && a.experts.shape == a.weights.shape);
  DSV4_CHECK(!a.w || RouterMultiplies(ctx, a.logits.dim(0), a.w, a.experts.dim(1) - (a.always >= 0 ? 1 : 0)));
  RunOp("router", kRouterCandidates, ctx, a);
}

bool RouterMultiplies(const ExecContext& ctx, int64_t num_tokens, const QuantTensor& w, int64_t chosen) {
  using namespace router;
  const int64_t tile_cols = CeilDiv(w.cols, kTileCols64);
  return SupportsCuda(ctx) && ctx.regime == Regime::kDecode && !ctx.reference_ops && !ctx.f32_inputs &&
         num_tokens <= kMostTokens && w.format == kFormat && w.rows > kExperts - kRows && w.rows <= kExperts &&
         chosen <= kMaxChosen && chosen <= w.rows && w.cols % 8 == 0 && tile_cols >= kSegments &&
         tile_cols <= kSegments * MostTiles(num_tokens) && ctx.gpu.cluster_blocks >= kBlocks;
}

std::string RouterImplementation(const ExecContext& ctx, bool multiplies) {
  if (!SupportsCuda(ctx)) return Choose(kRouterCandidates, ctx).name;
  return multiplies ? "RouteOneKernel" : "RouterKernel";
}

OpImplementations DescribeRouter(const ExecContext& ctx) { return DescribeOp("router", kRouterCandidates, ctx); }

}  // namespace dsv4
