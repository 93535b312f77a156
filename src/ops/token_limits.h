// How many tokens of a step the GPU's matrix products treat alike.
#pragma once

#include <cstdint>

namespace dsv4 {

// Up to here linears are tile_linear.h's, whatever the GPU, with one order of sums for any number of tokens; above, and unless
// --batch-invariant, linear_sm90.h's, which read weights once where those read them once for 32 tokens.
inline constexpr int64_t kTileLinearTokens = 32;

// Up to here the inputs are two numbers each (docs/numerics.md, 3.1). A mixture of experts waits for weights and their decoding up
// to about here: the second product then costs a quarter of the step.
inline constexpr int64_t kTwoPartTokens = 1024;

}  // namespace dsv4
