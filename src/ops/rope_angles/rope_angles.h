// cos_sin[t, i, :] = (cos a, sin a) with a = float(position[t]) * frequency[i]            (docs/dev/model.md)
// The angle is a float32 product, as in the model's own code. Its cosine and sine are computed in float64 (no fast-math
// range reduction: angles reach 1,048,575) and rounded to float32.
#pragma once

#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct RopeAnglesArgs {
  Tensor positions;    // i64 [T]
  Tensor frequencies;  // f32 [Dr/2]
  Tensor cos_sin;      // f32 [T, Dr/2, 2]
};
void RopeAngles(const ExecContext& ctx, const RopeAnglesArgs& args);
OpImplementations DescribeRopeAngles(const ExecContext& ctx);

}  // namespace dsv4
