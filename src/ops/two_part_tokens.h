// Up to how many tokens of a step the inputs of matrix products are two numbers each (docs/numerics.md, 3.1). A mixture of
// experts waits for weights and their decoding up to about here: the second product then costs a quarter of the step.
#pragma once

#include <cstdint>

namespace dsv4 {

inline constexpr int64_t kTwoPartTokens = 1024;

}  // namespace dsv4
