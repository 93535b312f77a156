// Rounds index queries by the index mode (docs/dev/model.md), per head of Di channels:
//   kFp4   Walsh-Hadamard rotation (Sylvester order, times Di^-1/2), then E2M1 in blocks of 32 with power-of-two scales
//   kBf16  rounded to BF16, without the rotation
//   kF32   unchanged, without the rotation
// Compress rounds index keys in the same way.
#pragma once

#include "dsv4/types.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct RoundIndexQueryArgs {
  Tensor q;  // f32 [T, Ni, Di], in place; Di a power of two and a multiple of 32
  IndexDtype dtype = IndexDtype::kFp4;
};
void RoundIndexQuery(const ExecContext& ctx, const RoundIndexQueryArgs& args);
OpImplementations DescribeRoundIndexQuery(const ExecContext& ctx);

}  // namespace dsv4
