// streams[t, h, :] += y[t, :] for every stream h. float32.
#pragma once

#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct StreamAddArgs {
  Tensor y;        // f32 [T, D]
  Tensor streams;  // f32 [T, H, D], in place
};
void StreamAdd(const ExecContext& ctx, const StreamAddArgs& args);
OpImplementations DescribeStreamAdd(const ExecContext& ctx);

}  // namespace dsv4
