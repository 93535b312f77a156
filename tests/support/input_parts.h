// What a GPU makes of an input of a matrix product: a sum of `parts` BF16 or FP16 numbers, each the rounding of what
// those before it leave. Two are within 2^-17 (BF16) of it, or 2^-22 (FP16, from 2^-3 on; 2^-25 below).
#pragma once

#include <algorithm>
#include <cmath>

#include "tensor/codec/bf16.h"

namespace dsv4::test {

// To nearest, ties to even, +-65504 at most.
inline float RoundToHalf(float x) {
  if (x == 0 || std::isnan(x)) return x;
  x = std::clamp(x, -65504.0f, 65504.0f);
  const int exponent = std::max(std::ilogb(x), -14) - 10;
  return std::ldexp(std::nearbyint(std::ldexp(x, -exponent)), exponent);
}

inline double InParts(float x, int parts, bool half = false) {
  double sum = 0;
  for (int i = 0; i < parts; ++i) {
    const float part = half ? RoundToHalf(x) : RoundToBf16(x);
    sum += static_cast<double>(part);
    x -= part;
  }
  return sum;
}

}  // namespace dsv4::test
