// Products of packed weights with 17 decode rows or more on Hopper: LinearKernels::kTiles, for which TileLinear needs
// several launches that each read and decode the weights. Here weights are decoded once for a tile of 32 or 64 rows and
// multiplied by wgmma. x is converted once, to blocks of BF16 numbers in scratch memory.
//
// A row has TileLinear's bits. K is divided into the same segments (tile_linear::LogSegments). In a segment even and
// odd tiles of 64 columns have separate sums. The two terms of an input also have separate sums. Sums are added in the
// same order. wgmma adds the sixteen products of a step to a sum as mma.m16n8k16 does.
#pragma once

#include "ops/linear/tile/tile_linear.h"

namespace dsv4 {

// Whether WideLinear, and not TileLinear, computes this number of rows.
inline bool WideLinearTakes(const ExecContext& ctx, int64_t num_tokens) {
  constexpr int64_t kFewest = 17;
  return ctx.gpu.IsHopper() && !ctx.f32_inputs && num_tokens >= kFewest;
}

// The same arguments as TileLinear.
void WideLinear(const ExecContext& ctx, const float* x, int64_t num_tokens, const TileLinearMatrix* matrices, int count,
                const float* norm = nullptr, float norm_eps = 0);

}  // namespace dsv4
