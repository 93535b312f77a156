// Linears of F32 weights on the GPU, as they lie in the file: LinearKernels::kRows.
#pragma once

#include "ops/linear/linear.h"

namespace dsv4 {

// One of the parts of `args`.
void F32Linear(const ExecContext& ctx, const LinearArgs& args, const LinearPart& part);

}  // namespace dsv4
