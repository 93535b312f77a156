#include "ops/linear/linear.h"

#include <vector>

#include "base/str.h"
#include "device/exchange.h"
#include "ops/cpu_rows.h"
#include "ops/cuda_row.h"
#include "ops/linear/tile/tile_linear.h"
#include "ops/linear/wide/wide_linear.h"
#include "ops/pack_weight/pack_weight.h"
#include "ops/weight_formats/tile_formats.h"

namespace dsv4 {

void LinearRef(const ExecContext& ctx, const LinearArgs& a);
void LinearCuda(const ExecContext& ctx, const LinearArgs& a);
DSV4_DECLARE_CPU_PRODUCT(LinearCpu, LinearArgs)

namespace {

// The CPU kernels and the reference take one matrix.
constexpr Candidate<LinearArgs> kLinearCandidates[] = {
    DSV4_CUDA_ROW(LinearCuda, "OneTokenKernel, TileLinearKernel, WideLinearKernel, LinearKernel")
        DSV4_CPU_PRODUCT_ROWS(LinearCpu){"ref", SupportsCpu, LinearRef},
};

void CheckLinearPart(const ExecContext& ctx, const LinearArgs& a, const LinearPart& part) {
  DSV4_CHECK_EQ(a.x.dim(0), part.y.dim(0));
  DSV4_CHECK_EQ(a.x.dim(1), a.groups * part.w.cols);
  DSV4_CHECK_EQ(part.y.dim(1), part.w.rows);
  DSV4_CHECK(ctx.device == DeviceKind::kCpu || !IsTight(part.w.format), "tight tiles are experts'");
  DSV4_CHECK(part.w.rows % a.groups == 0 && a.x.data != part.y.data);
  DSV4_CHECK(a.x_blocks == nullptr || a.x || LinearTakesBlocks(ctx, part.w));
  DSV4_CHECK(part.y_blocks == nullptr || (a.x_blocks != nullptr && LinearWritesBlocks(ctx, part.w, a.groups)));
  DSV4_CHECK(part.y_blocks == nullptr || a.parts.size() == 1);
  DSV4_CHECK(part.queries.blocks == nullptr || LinearTakesBlocks(ctx, part.w));
  DSV4_CHECK(!a.norm || LinearNormalises(ctx, part.w), "a linear with a norm");
  DSV4_CHECK(part.push_site == kNoSite ||
             (a.parts.size() == 1 && a.groups == 1 && !a.norm && LinearPushes(ctx, a.x.dim(0), part.w)));
}

}  // namespace

void Linear(const ExecContext& ctx, const LinearArgs& a) {
  DSV4_CHECK(!a.parts.empty());
  DSV4_CHECK(a.groups == 1 || a.parts.size() == 1, a.parts.size(), " parts of ", a.groups, " groups");
  DSV4_CHECK(!IsInteger(a.activation) || ctx.device == DeviceKind::kCpu);
  DSV4_CHECK(a.x_blocks == nullptr || !a.norm);
  for (const LinearPart& part : a.parts) CheckLinearPart(ctx, a, part);
  if (ctx.device != DeviceKind::kCpu || a.parts.size() == 1) return RunOp("linear", kLinearCandidates, ctx, a);
  // One by one, so that each has its own line in a trace.
  for (const LinearPart& part : a.parts) {
    LinearArgs one;  // by assignment, see LinearParts
    one.x = a.x, one.activation = a.activation;
    one.parts.Add(part);
    RunOp("linear", kLinearCandidates, ctx, one);
  }
}

LinearKernels GpuLinearKernels(const ExecContext& ctx, const QuantTensor& w) {
  if (w.format == WeightFormat::kF32) return LinearKernels::kRows;
  const bool prompt = ctx.regime != Regime::kDecode && !ctx.f32_inputs && ctx.gpu.IsHopper();
  return prompt ? LinearKernels::kPrompt : LinearKernels::kTiles;
}

int GpuInputNumbers(const ExecContext& ctx, const QuantTensor& w) {
  return ctx.regime == Regime::kPrompt || NeedsTwoParts(w.format) ? 2 : 1;
}

bool LinearTakesBlocks(const ExecContext& ctx, const QuantTensor& w) {
  return SupportsCuda(ctx) && ctx.regime == Regime::kLongPrompt && GpuLinearKernels(ctx, w) == LinearKernels::kPrompt &&
         IsHalf(w.format) && w.cols % kTileCols64 == 0;
}

bool LinearWritesBlocks(const ExecContext& ctx, const QuantTensor& w, int64_t groups) {
  return LinearTakesBlocks(ctx, w) && w.rows / groups % kTileCols64 == 0;
}

bool LinearNormalises(const ExecContext& ctx, const QuantTensor& w) {
  return SupportsCuda(ctx) && ctx.regime == Regime::kDecode && !ctx.reference_ops && !ctx.f32_inputs &&
         w.format != WeightFormat::kF32;
}

bool LinearPushes(const ExecContext& ctx, int64_t num_tokens, const QuantTensor& w) {
  const bool ranks = ctx.ranks != nullptr && ctx.ranks->count > 1 && ctx.ranks->transport == ExchangeTransport::kWords;
  return ranks && SupportsCuda(ctx) && ctx.regime == Regime::kDecode && !ctx.reference_ops && !ctx.f32_inputs &&
         GpuLinearKernels(ctx, w) == LinearKernels::kTiles && tile_linear::Pushes(ctx, num_tokens, w);
}

std::string LinearImplementation(const ExecContext& ctx, const QuantTensor& w, std::span<const QuantTensor> of_call,
                                 int64_t groups, int64_t num_tokens) {
  if (!SupportsCuda(ctx)) return Choose(kLinearCandidates, ctx).name;
  switch (GpuLinearKernels(ctx, w)) {
    case LinearKernels::kRows:
      return "F32LinearKernel, F32";
    case LinearKernels::kTiles: {
      if (ctx.f32_inputs) return "TileLinearKernel, 3 x BF16";
      if (WideLinearTakes(ctx, num_tokens)) return "WideLinearKernel, 2 x BF16";
      std::vector<QuantTensor> tiles;  // one launch
      for (const QuantTensor& m : of_call) {
        if (GpuLinearKernels(ctx, m) == LinearKernels::kTiles) tiles.push_back(m);
      }
      const bool one = tile_linear::OneTokenTakes(ctx, num_tokens, tiles, groups);
      return one ? "OneTokenKernel, 2 x BF16" : "TileLinearKernel, 2 x BF16";
    }
    case LinearKernels::kPrompt:
      return StrCat("LinearKernel, ", GpuInputNumbers(ctx, w), " x ", IsHalf(w.format) ? "FP16" : "BF16");
  }
  return "";
}

OpImplementations DescribeLinear(const ExecContext& ctx) { return DescribeOp("linear", kLinearCandidates, ctx); }

OpWork WorkOf(const LinearArgs& a) {
  const QuantTensor& w = a.parts.only().w;
  const int bits = RoundsToIntegers(a.activation, w.format) ? 8 * IntegerBytes(a.activation) : 0;
  return {.detail = StrCat(NameOf(w.format), " ", w.rows, "x", w.cols, bits > 0 ? StrCat(" by int", bits) : ""),
          .bytes = static_cast<double>(FileBytes(w)),
          .products = static_cast<double>(a.x.dim(0) * w.rows * w.cols)};
}

}  // namespace dsv4
