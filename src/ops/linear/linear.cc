#include "ops/linear/linear.h"

#include "base/str.h"
#include "ops/cpu_rows.h"
#include "ops/cuda_row.h"
#include "ops/pack_weight/pack_weight.h"
#include "ops/weight_formats/tile_formats.h"

namespace dsv4 {

void LinearRef(const ExecContext& ctx, const LinearArgs& a);
void LinearCuda(const ExecContext& ctx, const LinearArgs& a);
DSV4_DECLARE_CPU_PRODUCT(LinearCpu, LinearArgs)

namespace {

constexpr Candidate<LinearArgs> kLinearCandidates[] = {
    DSV4_CUDA_ROW(LinearCuda, "OneTokenKernel, TileLinearKernel, LinearKernel")
    DSV4_CPU_PRODUCT_ROWS(LinearCpu)
    {"ref", SupportsCpu, LinearRef},
};

}  // namespace

void Linear(const ExecContext& ctx, const LinearArgs& a) {
  DSV4_CHECK_EQ(a.x.dim(0), a.y.dim(0));
  DSV4_CHECK_EQ(a.x.dim(1), a.groups * a.w.cols);
  DSV4_CHECK_EQ(a.y.dim(1), a.w.rows);
  DSV4_CHECK(a.w.rows % a.groups == 0 && a.x.data != a.y.data);
  DSV4_CHECK(!IsInteger(a.activation) || ctx.device == DeviceKind::kCpu);
  DSV4_CHECK(a.x_blocks == nullptr || LinearTakesBlocks(ctx, a.w));
  DSV4_CHECK(a.y_blocks == nullptr || (a.x_blocks != nullptr && LinearWritesBlocks(ctx, a.w, a.groups)));
  RunOp("linear", kLinearCandidates, ctx, a);
}

LinearKernels GpuLinearKernels(const ExecContext& ctx, const QuantTensor& w) {
  if (w.format == WeightFormat::kF32) return LinearKernels::kRows;
  return ctx.regime != Regime::kDecode && !ctx.f32_inputs && ctx.gpu.IsHopper() ? LinearKernels::kPrompt : LinearKernels::kTiles;
}

int GpuInputParts(const ExecContext& ctx, const QuantTensor& w) {
  return ctx.regime == Regime::kPrompt || NeedsTwoParts(w.format) ? 2 : 1;
}

bool LinearTakesBlocks(const ExecContext& ctx, const QuantTensor& w) {
  return SupportsCuda(ctx) && ctx.regime == Regime::kLongPrompt && GpuLinearKernels(ctx, w) == LinearKernels::kPrompt &&
         IsHalf(w.format) && w.cols % kTileCols64 == 0;
}

bool LinearWritesBlocks(const ExecContext& ctx, const QuantTensor& w, int64_t groups) {
  return LinearTakesBlocks(ctx, w) && w.rows / groups % kTileCols64 == 0;
}

std::string LinearImplementation(const ExecContext& ctx, const QuantTensor& w) {
  if (!SupportsCuda(ctx)) return Choose(kLinearCandidates, ctx).name;
  switch (GpuLinearKernels(ctx, w)) {
    case LinearKernels::kRows: return "F32LinearKernel, F32";
    case LinearKernels::kTiles: return ctx.f32_inputs ? "TileLinearKernel, 3 x BF16" : "TileLinearKernel, 2 x BF16";
    case LinearKernels::kPrompt: {
      return StrCat("LinearKernel, ", GpuInputParts(ctx, w), " x ", IsHalf(w.format) ? "FP16" : "BF16");
    }
  }
  return "";
}

OpImplementations DescribeLinear(const ExecContext& ctx) { return DescribeOp("linear", kLinearCandidates, ctx); }

OpWork WorkOf(const LinearArgs& a) {
  const int bits = RoundsToIntegers(a.activation, a.w.format) ? 8 * IntegerBytes(a.activation) : 0;
  return {.detail = StrCat(NameOf(a.w.format), " ", a.w.rows, "x", a.w.cols, bits > 0 ? StrCat(" by int", bits) : ""),
          .bytes = static_cast<double>(FileBytes(a.w)),
          .products = static_cast<double>(a.x.dim(0) * a.w.rows * a.w.cols)};
}

}  // namespace dsv4
