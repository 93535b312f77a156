#include "ops/swiglu/swiglu.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void SwigluRef(const ExecContext& ctx, const SwigluArgs& a);
void SwigluCuda(const ExecContext& ctx, const SwigluArgs& a);

namespace {

constexpr Candidate<SwigluArgs> kSwigluCandidates[] = {
    DSV4_CUDA_ROW(SwigluCuda, "SwigluKernel"){"ref", SupportsCpu, SwigluRef},
};

}  // namespace

void Swiglu(const ExecContext& ctx, const SwigluArgs& a) {
  DSV4_CHECK(a.gate.shape == a.up.shape && a.gate.shape == a.y.shape);
  DSV4_CHECK(a.y_blocks == nullptr || (ctx.device == DeviceKind::kCuda && !a.weight && a.gate.dim(1) % 64 == 0));
  RunOp("swiglu", kSwigluCandidates, ctx, a);
}

OpImplementations DescribeSwiglu(const ExecContext& ctx) { return DescribeOp("swiglu", kSwigluCandidates, ctx); }

}  // namespace dsv4
