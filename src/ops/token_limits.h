// How many tokens of a step the GPU's kernels treat alike.
#pragma once

#include <cstdint>

namespace dsv4 {

// Up to here the kernels are those for few tokens, whose bits of a row do not depend on T (docs/cuda.md, Numerics); with
// --batch-invariant they serve any T.
inline constexpr int64_t kFewTokens = 64;

// Up to here inputs are two numbers each (docs/numerics.md, 3.1). A mixture of experts waits for weights and their decoding up to
// about here: the second product then costs a quarter of the step.
inline constexpr int64_t kTwoPartTokens = 1024;

}  // namespace dsv4
