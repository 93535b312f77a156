// sum of x[i]^2 in one fixed order: eight 8-lane accumulators over i in blocks of 64, added pairwise at the end.
#pragma once

#include "ops/simd.h"

namespace dsv4::DSV4_ISA {

DSV4_INLINE float SquareSum(const float* x, int64_t n) {
  constexpr int kAccumulators = 8;
  Vec acc[kAccumulators];
  for (Vec& a : acc) a = Zero();
  int64_t i = 0;
  for (; i + kAccumulators * kLanes <= n; i += kAccumulators * kLanes) {
    for (int j = 0; j < kAccumulators; ++j) {
      const Vec v = Load(x + i + j * kLanes);
      acc[j] = Fma(v, v, acc[j]);
    }
  }
  for (; i + kLanes <= n; i += kLanes) {
    const Vec v = Load(x + i);
    acc[0] = Fma(v, v, acc[0]);
  }
  if (i < n) {
    const Vec v = LoadPartial(x + i, n - i);
    acc[0] = Fma(v, v, acc[0]);
  }
  for (int width = kAccumulators / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) acc[j] = Add(acc[j], acc[j + width]);
  }
  return Sum(acc[0]);
}

}  // namespace dsv4::DSV4_ISA
