// The kernels of decode rows for tight tiles, compiled separately.
#include "ops/experts/expert_launch.cuh"

namespace dsv4::experts {

namespace {

template <WeightFormat F, bool Up>
void TightGemm(const ExecContext& ctx, bool wide, const GemmArgs& a, int64_t max_chunks) {
  if (ctx.f32_inputs) return Gemm<F, 3, Up, true>(ctx, a, max_chunks);
  if (wide) return Gemm<F, 2, Up, true>(ctx, a, max_chunks);
  return Gemm<F, 2, Up, false>(ctx, a, max_chunks);
}

}  // namespace

void GemmTight(const ExecContext& ctx, WeightFormat format, bool up, bool wide, const GemmArgs& a, int64_t max_chunks) {
  const auto of = [&]<WeightFormat F>() {
    up ? TightGemm<F, true>(ctx, wide, a, max_chunks) : TightGemm<F, false>(ctx, wide, a, max_chunks);
  };
  if (format == WeightFormat::kMxfp4Tight) return of.template operator()<WeightFormat::kMxfp4Tight>();
  return of.template operator()<WeightFormat::kNvfp4Tight>();
}

void ManyTight(const ExecContext& ctx, WeightFormat format, bool up, const GemmArgs& a, int64_t max_chunks) {
  if (format == WeightFormat::kMxfp4Tight) return LaunchMany<WeightFormat::kMxfp4Tight>(ctx, a, up, max_chunks);
  LaunchMany<WeightFormat::kNvfp4Tight>(ctx, a, up, max_chunks);
}

void FewTight(const ExecContext& ctx, WeightFormat format, bool up, const GemmArgs& a, int64_t tokens,
              int64_t max_chunks) {
  if (format == WeightFormat::kMxfp4Tight) return LaunchFew<WeightFormat::kMxfp4Tight>(ctx, a, up, tokens, max_chunks);
  LaunchFew<WeightFormat::kNvfp4Tight>(ctx, a, up, tokens, max_chunks);
}

}  // namespace dsv4::experts
