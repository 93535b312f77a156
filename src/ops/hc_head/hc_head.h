// The final read of the residual streams (docs/dev/model.md), in float32:
//   pre[j] = sigmoid(rho * (fn X)[j] * scale + base[j]) + eps;  out[r] = sum_j pre[j] * streams[r, j]
#pragma once

#include "ops/registry.h"
#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct HcHeadArgs {
  Tensor streams;  // f32 [R, H, D]
  QuantTensor fn;  // [H, H*D] f32 | bf16
  Tensor base;     // f32 [H]
  Tensor scale;    // f32 [1]
  float eps = 0;
  float norm_eps = 0;
  Tensor out;  // f32 [R, D]
};
void HcHead(const ExecContext& ctx, const HcHeadArgs& args);
OpImplementations DescribeHcHead(const ExecContext& ctx);
OpWork WorkOf(const HcHeadArgs& args);

}  // namespace dsv4
