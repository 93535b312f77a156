// Linears for many tokens on Hopper: weights decoded to FP16 (NVFP4, FP8) or BF16 in registers, wgmma. Activations are one or
// two such numbers each: rounded, or a sum within 2^-22 (2^-17) of them; with FP16 in +-65504.
#pragma once

#include "ops/linear/linear.h"
#include "ops/linears/linears.h"

namespace dsv4 {

// LinearKernels::kPrompt: packed weights on Hopper. Any T; made for T > 64.
// Matrices that are BF16 in a checkpoint choose (the router, the compressors) and are a few percent of the products: their
// activations always are two numbers.
void LinearPrefillSm90(const ExecContext& ctx, const LinearArgs& args, int parts);
// The same for several matrices, each of a supported format: one conversion of x, one launch for all of a format.
void LinearsPrefillSm90(const ExecContext& ctx, const LinearsArgs& args, int parts);

}  // namespace dsv4
