// Writes a sublayer's output back into the residual streams (docs/dev/model.md), in float32:
//   streams[t, k] = post[t, k] * y[t] + sum_j comb[t, j, k] * streams[t, j]
#pragma once

#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct HcPostArgs {
  Tensor y;        // f32 [T, D]
  Tensor post;     // f32 [T, H]
  Tensor comb;     // f32 [T, H_src, H_dst]
  Tensor streams;  // f32 [T, H, D], in place
};
void HcPost(const ExecContext& ctx, const HcPostArgs& args);
OpImplementations DescribeHcPost(const ExecContext& ctx);

}  // namespace dsv4
