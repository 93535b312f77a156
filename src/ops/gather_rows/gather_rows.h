// out[i, ...] = x[rows[i], ...]. Exact.
#pragma once

#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct GatherRowsArgs {
  Tensor x;     // f32 [T, ...]
  Tensor rows;  // i32 [R], each in [0, T)
  Tensor out;   // f32 [R, ...]; not x
};
void GatherRows(const ExecContext& ctx, const GatherRowsArgs& args);
OpImplementations DescribeGatherRows(const ExecContext& ctx);

}  // namespace dsv4
