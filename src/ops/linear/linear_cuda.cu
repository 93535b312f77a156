#include "ops/linear/linear.h"
#include "ops/linear/rows/f32_rows.h"
#include "ops/linear/tile/tile_linear.h"
#include "ops/linear/wgmma/wgmma_linear.h"
#include "ops/linear/wide/wide_linear.h"

namespace dsv4 {

// One launch for all matrices in tiles; for prompts on Hopper one launch per format. F32 weights are computed one by
// one.
void LinearCuda(const ExecContext& ctx, const LinearArgs& a) {
  TileLinearMatrix tiles[kMaxLinearParts];
  int num_tiles = 0;
  LinearArgs prompt = {.x = a.x, .groups = a.groups, .x_blocks = a.x_blocks};
  for (const LinearPart& part : a.parts) {
    if (part.w.rows == 0) continue;
    const LinearKernels kernels = GpuLinearKernels(ctx, part.w);
    DSV4_CHECK(part.queries.blocks == nullptr || kernels == LinearKernels::kPrompt);
    switch (kernels) {
      case LinearKernels::kRows:
        F32Linear(ctx, a, part);
        break;
      case LinearKernels::kTiles:
        tiles[num_tiles++] = {.w = part.w, .y = part.y.f32(), .groups = a.groups, .push_site = part.push_site};
        break;
      case LinearKernels::kPrompt:
        prompt.parts.Add(part);
        break;
    }
  }
  if (!prompt.parts.empty()) WgmmaLinear(ctx, prompt);
  if (num_tiles == 0) return;
  const auto linear = WideLinearTakes(ctx, a.x.dim(0)) ? WideLinear : TileLinear;
  linear(ctx, a.x.f32(), a.x.dim(0), tiles, num_tiles, a.norm ? a.norm.f32() : nullptr, a.norm_eps);
}

}  // namespace dsv4
