#include "ops/linears/linears.h"

#include "ops/cuda_row.h"
#include "ops/linear/linear.h"

namespace dsv4 {

void LinearsRef(const ExecContext& ctx, const LinearsArgs& a);
void LinearsCuda(const ExecContext& ctx, const LinearsArgs& a);

namespace {

constexpr Candidate<LinearsArgs> kLinearsCandidates[] = {
    DSV4_CUDA_ROW(LinearsCuda, "OneTokenKernel, TileLinearKernel, LinearKernel")
    {"ref", SupportsCpu, LinearsRef},
};

}  // namespace

bool LinearsNormalise(const ExecContext& ctx, const QuantTensor& w) {
  return SupportsCuda(ctx) && ctx.regime == Regime::kDecode && !ctx.reference_ops && !ctx.f32_inputs && w.format != WeightFormat::kF32;
}

void Linears(const ExecContext& ctx, const LinearsArgs& a) {
  DSV4_CHECK(a.count >= 1 && a.count <= kMaxLinears, a.count, " linears");
  DSV4_CHECK(!IsInteger(a.activation) || ctx.device == DeviceKind::kCpu);
  for (int i = 0; i < a.count; ++i) {
    const LinearPart& part = a.parts[static_cast<size_t>(i)];
    DSV4_CHECK_EQ(a.x.dim(0), part.y.dim(0));
    DSV4_CHECK_EQ(a.x.dim(1), part.w.cols);
    DSV4_CHECK_EQ(part.y.dim(1), part.w.rows);
    DSV4_CHECK(a.x.data != part.y.data);
    DSV4_CHECK(part.queries.blocks == nullptr || LinearTakesBlocks(ctx, part.w));
    DSV4_CHECK(!a.norm || LinearsNormalise(ctx, part.w), "linears with a norm");
  }
  DSV4_CHECK(a.x_blocks == nullptr || !a.norm);
  RunOp("linears", kLinearsCandidates, ctx, a);
}

OpImplementations DescribeLinears(const ExecContext& ctx) { return DescribeOp("linears", kLinearsCandidates, ctx); }

}  // namespace dsv4
