#include "ops/step_before/step_before.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void StepBeforeRef(const ExecContext& ctx, const StepBeforeArgs& a);
void StepBeforeCuda(const ExecContext& ctx, const StepBeforeArgs& a);

namespace {

constexpr Candidate<StepBeforeArgs> kStepBeforeCandidates[] = {
    DSV4_CUDA_ROW(StepBeforeCuda, "StepBeforeKernel"){"ref", SupportsCpu, StepBeforeRef},
};

}  // namespace

void StepBefore(const ExecContext& ctx, const StepBeforeArgs& a) {
  DSV4_CHECK_EQ(a.positions.dim(0), a.positions_before.dim(0));
  DSV4_CHECK(a.sequences != a.before);
  RunOp("step_before", kStepBeforeCandidates, ctx, a);
}

OpImplementations DescribeStepBefore(const ExecContext& ctx) {
  return DescribeOp("step_before", kStepBeforeCandidates, ctx);
}

}  // namespace dsv4
