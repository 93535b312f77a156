#include "ops/experts/experts.h"

#include <iterator>
#include <string>
#include <vector>

#include "base/str.h"
#include "ops/cpu_rows.h"
#include "ops/cuda_row.h"
#include "ops/experts/expert_forms.h"
#include "ops/idle_row.h"
#include "ops/rank_rows.h"
#include "ops/weight_formats/tile_formats.h"

namespace dsv4 {

void ExpertsRef(const ExecContext& ctx, const ExpertsArgs& a);
void ExpertsCuda(const ExecContext& ctx, const ExpertsArgs& a);
DSV4_DECLARE_CPU_PRODUCT(ExpertsCpu, ExpertsArgs)

namespace {

constexpr Candidate<ExpertsArgs> kExpertsCandidates[] = {
    DSV4_CUDA_ROW(ExpertsCuda, "ExpertOneKernel, ExpertFewKernel, ExpertManyKernel, ExpertGemmKernel, ExpertsKernel")
        DSV4_CPU_PRODUCT_ROWS(ExpertsCpu){"ref", SupportsCpu, ExpertsRef},
};

}  // namespace

void Experts(const ExecContext& ctx, const ExpertsArgs& a) {
  const int64_t t = a.x.dim(0), num_slots = t * a.experts.dim(1);
  DSV4_CHECK_EQ(a.experts.dim(0), t);
  DSV4_CHECK_EQ(a.hidden.dim(0), num_slots);
  DSV4_CHECK_EQ(a.outputs.dim(0), num_slots);
  DSV4_CHECK((!a.shared && ctx.device != DeviceKind::kCpu) || a.shared.shape == a.x.shape);
  DSV4_CHECK((!a.y && !a.shared && ctx.device != DeviceKind::kCpu) || (a.y.shape == a.x.shape && a.y.data != a.x.data));
  DSV4_CHECK(!a.sums_ranks || ExpertsSumRanks(ctx, a));
  RunOp("experts", kExpertsCandidates, ctx, a);
}

ExpertsShape ShapeOf(const ExpertsArgs& a) {
  return {.first = a.first,
          .num_experts = static_cast<int64_t>(a.matrices.size()),
          .slots = a.experts.dim(1),
          .activation = a.activation,
          .with_shared = !a.shared};
}

bool ExpertsSumRanks(const ExecContext& ctx, const ExpertsArgs& a) {
  if (!SupportsCuda(ctx) || ctx.ranks == nullptr || ctx.ranks->transport != ExchangeTransport::kWords || !a.shared)
    return false;
  const int64_t rows = a.x.dim(0), d = a.x.dim(1), count = ctx.ranks->count, num_experts = std::ssize(a.matrices);
  return ExpertsRunAsPrompt(ctx, a.first, a.activation, num_experts) &&
         ExpertsRowsAtOnce(ctx, ShapeOf(a), rows) == rows && rows >= count * kShareRows && d % 4 == 0 &&
         d >= kBulkChunk &&
         LongestShare(rows, static_cast<int>(count), kShareRows) * d <= ctx.ranks->memory.bulk_floats;
}

bool ExpertsTake(WeightFormat format, WeightFormat other) { return other == format || other == FormatBeside(format); }

bool ExpertsRunAsPrompt(const ExecContext& ctx, const ExpertMatrices& first, ActivationDtype activation,
                        int64_t num_experts) {
  if (ctx.regime == Regime::kDecode || ctx.f32_inputs || !ctx.gpu.IsHopper() || num_experts > kMaxExpertsOnGpu)
    return false;
  for (const QuantTensor* w : {&first.gate, &first.up, &first.down}) {
    if (w->format == WeightFormat::kF32 || (w->quantised() && activation != ActivationDtype::kNative)) return false;
  }
  return first.gate.format == first.up.format && IsHalf(first.gate.format) == IsHalf(first.down.format);
}

int GpuExpertsInputNumbers(const ExecContext& ctx, const ExpertMatrices& first) {
  const bool bf16 = NeedsTwoParts(first.gate.format) || NeedsTwoParts(first.down.format);
  return ctx.regime == Regime::kPrompt || bf16 ? 2 : 1;
}

bool ExpertsReadBlocks(const ExecContext& ctx, const ExpertMatrices& first, ActivationDtype activation,
                       int64_t num_experts) {
  return SupportsCuda(ctx) && ExpertsRunAsPrompt(ctx, first, activation, num_experts) && IsHalf(first.gate.format) &&
         GpuExpertsInputNumbers(ctx, first) == 1;
}

std::string ExpertsImplementation(const ExecContext& ctx, const ExpertsShape& s, int64_t rows) {
  if (!SupportsCuda(ctx)) return Choose(kExpertsCandidates, ctx).name;
  if (!s.with_shared && ExpertsRunAsPrompt(ctx, s.first, s.activation, s.num_experts)) {
    return StrCat("ExpertsKernel, ", GpuExpertsInputNumbers(ctx, s.first), " x ",
                  IsHalf(s.first.gate.format) ? "FP16" : "BF16");
  }
  const std::string kernels = experts::DecodeKernels(ctx, s, rows);
  if (s.first.gate.format == WeightFormat::kF32 && s.first.down.format == WeightFormat::kF32) return kernels;
  return StrCat(kernels, ctx.f32_inputs ? ", 3 x BF16" : ", 2 x BF16");
}

OpImplementations DescribeExperts(const ExecContext& ctx) { return DescribeOp("experts", kExpertsCandidates, ctx); }

OpWork WorkOf(const ExpertsArgs& a) {
  double bytes = 0, products = 0;
  std::vector<bool> named(a.matrices.size());
  const int64_t num_pairs = a.experts.num_elements();
  for (int64_t i = 0; i < num_pairs; ++i) {
    if (a.experts.i32()[i] == kNoExpert) continue;
    const auto e = static_cast<size_t>(a.experts.i32()[i]);
    const ExpertMatrices& m = a.matrices[e];
    for (const QuantTensor* w : {&m.gate, &m.up, &m.down}) {
      if (!named[e]) bytes += static_cast<double>(FileBytes(*w));
      products += static_cast<double>(w->rows * w->cols);
    }
    named[e] = true;
  }
  return {.detail = std::string(NameOf(a.matrices.front().gate.format)), .bytes = bytes, .products = products};
}

}  // namespace dsv4
