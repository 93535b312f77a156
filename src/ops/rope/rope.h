// Rotates the last Dr channels of every head, in interleaved pairs (a, b) -> (a cos - b sin, a sin + b cos); `inverse`
// rotates back (the attention output, at the query's position).                     (docs/dev/model.md)
#pragma once

#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct RopeArgs {
  Tensor x;        // f32 [T, N, Dh], in place
  Tensor cos_sin;  // f32 [T, Dr/2, 2], from RopeAngles
  bool inverse = false;
};
void Rope(const ExecContext& ctx, const RopeArgs& args);
OpImplementations DescribeRope(const ExecContext& ctx);

}  // namespace dsv4
