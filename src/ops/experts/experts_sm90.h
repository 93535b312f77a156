// The routed experts for many tokens on Hopper. The device sorts pairs (token, choice) by expert, stably. It decodes
// each expert's weights in registers to FP16 (NVFP4, FP8) or BF16 and multiplies them with the expert's tokens by
// wgmma. The inputs of the products are x and h = Swiglu(gate, up) * weight, which is computed in float32. Each has one
// or two FP16 or BF16 terms: rounded (one), or a sum within 2^-22 (FP16) or 2^-17 (BF16) of the input (two). With FP16
// the range is +-65504.
#pragma once

#include "ops/experts/experts.h"

namespace dsv4 {

// Requires ExpertsRunAsPrompt and T at most ExpertsRowsAtOnce.
void ExpertsPrefillSm90(const ExecContext& ctx, const ExpertsArgs& args);

}  // namespace dsv4
