// The routed experts for many tokens on Hopper. Pairs (token, slot) are sorted by expert on the device, stably; each
// expert's weights are decoded to FP16 (NVFP4, FP8) or BF16 in registers and multiplied with its tokens by wgmma.
// Inputs of both products, x and h = Swiglu(gate, up) * weight computed in float32, are one or two such numbers each:
// rounded, or a sum within 2^-22 (2^-17) of them; with FP16 in +-65504.
#pragma once

#include "ops/experts/experts.h"

namespace dsv4 {

// Where ExpertsRunAsPrompt; T at most ExpertsRowsAtOnce.
void ExpertsPrefillSm90(const ExecContext& ctx, const ExpertsArgs& args);

}  // namespace dsv4
