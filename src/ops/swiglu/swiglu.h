// y[r, f] = silu(min(gate, limit)) * clamp(up, -limit, limit) * weight[r]      (docs/dev/model.md), in float32
#pragma once

#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct SwigluArgs {
  Tensor gate;    // f32 [R, F]
  Tensor up;      // f32 [R, F]
  Tensor weight;  // f32 [R]; empty: ones
  float limit = 0;
  Tensor y;  // f32 [R, F]; may be gate or up
  // On a GPU: y as FP16 in blocks (ops/activation_blocks.cuh), instead of y. F is a multiple of 64; no weight.
  uint8_t* y_blocks = nullptr;
};
void Swiglu(const ExecContext& ctx, const SwigluArgs& args);
OpImplementations DescribeSwiglu(const ExecContext& ctx);

}  // namespace dsv4
