#include "ops/linear/linear.h"
#include "ops/linear/linear_sm90.h"
#include "ops/linear/tile_linear.h"
#include "ops/linears/linears.h"

namespace dsv4 {

void LinearCuda(const ExecContext& ctx, const LinearArgs& a);

// One launch for all that have tiles, for prompts on Hopper one a format; F32 weights go one by one.
void LinearsCuda(const ExecContext& ctx, const LinearsArgs& a) {
  TileLinearMatrix matrices[kMaxLinears];
  int count = 0;
  LinearsArgs together = {.x = a.x, .x_blocks = a.x_blocks};
  for (int i = 0; i < a.count; ++i) {
    const LinearPart& part = a.parts[static_cast<size_t>(i)];
    if (part.w.rows == 0) continue;
    const LinearKernels kernels = GpuLinearKernels(ctx, part.w);
    if (kernels == LinearKernels::kPrompt) {
      together.parts[static_cast<size_t>(together.count++)] = part;
      continue;
    }
    DSV4_CHECK(part.queries.blocks == nullptr);
    if (kernels == LinearKernels::kRows) {
      LinearCuda(ctx, {.x = a.x, .w = part.w, .y = part.y});
    } else {
      matrices[count++] = {.w = part.w, .y = part.y.f32()};
    }
  }
  if (together.count > 0) LinearsPrefillSm90(ctx, together, ctx.regime == Regime::kPrompt ? 2 : 1);
  if (count > 0) TileLinear(ctx, a.x.f32(), a.x.dim(0), matrices, count, a.norm ? a.norm.f32() : nullptr, a.norm_eps);
}

}  // namespace dsv4
