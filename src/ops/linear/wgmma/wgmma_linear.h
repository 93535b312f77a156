// Linears of prompts on Hopper, with wgmma. Weights are decoded in registers to FP16 (NVFP4, FP8) or BF16. An
// activation has one or two such terms (GpuInputNumbers): rounded (one), or a sum within 2^-22 (FP16) or 2^-17 (BF16)
// of it (two). With FP16 the range is +-65504.
#pragma once

#include "ops/linear/linear.h"

namespace dsv4 {

// All of `args.parts` are LinearKernels::kPrompt. Any T; made for T > 64. One conversion of x, one launch for all
// matrices of a format. The matrices that are BF16 in a checkpoint select (router, compressors), and are a few percent
// of the products. So their activations always have two terms.
void WgmmaLinear(const ExecContext& ctx, const LinearArgs& args);

}  // namespace dsv4
