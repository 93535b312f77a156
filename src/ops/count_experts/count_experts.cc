#include "ops/count_experts/count_experts.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void CountExpertsRef(const ExecContext& ctx, const CountExpertsArgs& a);
void CountExpertsCuda(const ExecContext& ctx, const CountExpertsArgs& a);

namespace {

constexpr Candidate<CountExpertsArgs> kCountExpertsCandidates[] = {
    DSV4_CUDA_ROW(CountExpertsCuda, "CountExpertsKernel"){"ref", SupportsCpu, CountExpertsRef},
};

}  // namespace

void CountExperts(const ExecContext& ctx, const CountExpertsArgs& a) {
  DSV4_CHECK(!a.passes || a.chosen.shape == a.passes.shape);
  DSV4_CHECK(a.num_ids <= a.layer_stride || a.chosen.dim(0) == 1);
  DSV4_CHECK(ctx.device == DeviceKind::kCpu || a.chosen.dim(1) <= kMaxCountedOnGpu);
  RunOp("count_experts", kCountExpertsCandidates, ctx, a);
}

OpImplementations DescribeCountExperts(const ExecContext& ctx) {
  return DescribeOp("count_experts", kCountExpertsCandidates, ctx);
}

}  // namespace dsv4
