// Rounds the input of a quantised linear by the activation mode (docs/dev/numerics.md):
//   kFp8    blocks of 128 along K, scale 2^ceil(log2(max|x| / 448)), E4M3
//   kNvfp4  per row s = max|x| / (6*448) of the row itself; blocks of 16, scale E4M3(max|x in block| / (6 s)), E2M1
//   kInt8   blocks of 32 along K, scale max|x| / 127, integers from -127 to 127; on the CPU only
//   kInt16  as kInt8, with 32639 instead of 127
//   kInt24  as kInt8, with 8355711 instead of 127; the scale is the smallest power of two that fits
// kNative and kF32 copy. Every row has its own scales: nothing is shared between rows or kept between calls.
#pragma once

#include "dsv4/types.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct RoundActivationArgs {
  Tensor x;  // f32 [T, K]
  Tensor y;  // f32 [T, K]; may be x
  ActivationDtype mode = ActivationDtype::kNative;
};
void RoundActivation(const ExecContext& ctx, const RoundActivationArgs& args);
OpImplementations DescribeRoundActivation(const ExecContext& ctx);

}  // namespace dsv4
