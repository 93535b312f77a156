#include "ops/router/router.h"

namespace dsv4 {

void RouterRef(const ExecContext& ctx, const RouterArgs& a);
void RouterCuda(const ExecContext& ctx, const RouterArgs& a);

namespace {

constexpr Candidate<RouterArgs> kRouterCandidates[] = {
    DSV4_CUDA_ROW(RouterCuda)
    {"ref", SupportsCpu, RouterRef},
};

}  // namespace

void Router(const ExecContext& ctx, const RouterArgs& a) {
  DSV4_CHECK(static_cast<bool>(a.hash_table) != static_cast<bool>(a.bias), "one of hash table and bias");
  DSV4_CHECK_EQ(a.logits.dim(0), a.experts.dim(0));
  DSV4_CHECK(a.experts.dim(1) - (a.always >= 0 ? 1 : 0) <= a.logits.dim(1) && a.experts.shape == a.weights.shape);
  DSV4_CHECK(!a.w || RouterMultiplies(ctx, a));
  RunOp("router", kRouterCandidates, ctx, a);
}

OpImplementations DescribeRouter(const ExecContext& ctx) { return DescribeOp("router", kRouterCandidates, ctx); }

}  // namespace dsv4
