// Walsh-Hadamard rotation in Sylvester (natural) order, times n^-1/2: orthogonal and its own inverse.
#pragma once

#include <cmath>
#include <cstdint>

namespace dsv4 {

// n a power of two; in place.
inline void Hadamard(float* x, int64_t n) {
  for (int64_t half = 1; half < n; half *= 2) {
    for (int64_t block = 0; block < n; block += 2 * half) {
      for (int64_t i = block; i < block + half; ++i) {
        const float sum = x[i] + x[i + half], difference = x[i] - x[i + half];
        x[i] = sum;
        x[i + half] = difference;
      }
    }
  }
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  for (int64_t i = 0; i < n; ++i) x[i] *= scale;
}

}  // namespace dsv4
