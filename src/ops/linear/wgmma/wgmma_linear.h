// Linears of prompts on Hopper: weights decoded to FP16 (NVFP4, FP8) or BF16 in registers, wgmma. Activations are one
// or two such numbers each (GpuInputNumbers): rounded, or a sum within 2^-22 (2^-17) of them; with FP16 in +-65504.
#pragma once

#include "ops/linear/linear.h"

namespace dsv4 {

// All of `args.parts` are LinearKernels::kPrompt. Any T; made for T > 64. One conversion of x, one launch for all of a
// format. Matrices that are BF16 in a checkpoint choose (the router, the compressors) and are a few percent of the
// products: their activations always are two numbers.
void WgmmaLinear(const ExecContext& ctx, const LinearArgs& args);

}  // namespace dsv4
