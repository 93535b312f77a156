// Linears of F32 weights on the GPU, in the file's layout: LinearKernels::kRows.
#pragma once

#include "ops/linear/linear.h"

namespace dsv4 {

// Computes `part`, one of the matrices of `args`.
void F32Linear(const ExecContext& ctx, const LinearArgs& args, const LinearPart& part);

}  // namespace dsv4
