// Linear for many tokens on Hopper: weights decoded to BF16 in registers, wgmma. Activations are rounded to BF16.
#pragma once

#include "ops/linear/linear.h"

namespace dsv4 {

// Packed weights (kTiles) on a GPU of compute capability 9.0. Any T; made for T > 64.
bool LinearPrefillSm90Supports(const LinearArgs& args);
void LinearPrefillSm90(const ExecContext& ctx, const LinearArgs& args);

}  // namespace dsv4
