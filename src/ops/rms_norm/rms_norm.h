// y[r, d] = x[r, d] / sqrt(mean_d(x[r, :]^2) + eps) * weight[d]                          (docs/dev/model.md)
// Statistics and products are float32. Rows are independent: a row's bits do not depend on R.
#pragma once

#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct RmsNormArgs {
  Tensor x;       // f32 [R, D]
  Tensor weight;  // f32 [D]; empty: ones (the norm of query heads)
  Tensor y;       // f32 [R, D]; may be x
  float eps = 0;
};
void RmsNorm(const ExecContext& ctx, const RmsNormArgs& args);
OpImplementations DescribeRmsNorm(const ExecContext& ctx);

}  // namespace dsv4
