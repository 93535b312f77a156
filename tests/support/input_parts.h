// A GPU's representation of an input of a matrix product: a sum of `parts` BF16 or FP16 numbers. Each rounds what the
// previous ones leave. Two are within 2^-17 (BF16) of the input, or 2^-22 (FP16, for 2^-3 and above; 2^-25 below).
#pragma once

#include <algorithm>
#include <cmath>

#include "tensor/codec/bf16.h"

namespace dsv4::test {

// Rounds to nearest, ties to even, limited to +-65504.
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
