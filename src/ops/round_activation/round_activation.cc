#include "ops/round_activation/round_activation.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void RoundActivationRef(const ExecContext& ctx, const RoundActivationArgs& a);
void RoundActivationCuda(const ExecContext& ctx, const RoundActivationArgs& a);

namespace {

constexpr Candidate<RoundActivationArgs> kRoundActivationCandidates[] = {
    DSV4_CUDA_ROW(RoundActivationCuda, "RoundFp8Kernel, RoundNvfp4Kernel"){"ref", SupportsCpu, RoundActivationRef},
};

}  // namespace

void RoundActivation(const ExecContext& ctx, const RoundActivationArgs& a) {
  DSV4_CHECK(a.x.shape == a.y.shape);
  DSV4_CHECK(!IsInteger(a.mode) || ctx.device == DeviceKind::kCpu);
  RunOp("round_activation", kRoundActivationCandidates, ctx, a);
}

OpImplementations DescribeRoundActivation(const ExecContext& ctx) {
  return DescribeOp("round_activation", kRoundActivationCandidates, ctx);
}

}  // namespace dsv4
