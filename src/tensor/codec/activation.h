// Rounding of vectors to block formats and back ("simulated quantisation"), as the model was trained with
// (reference: DeepSeek's inference code, docs/model.md) or as W4A4 inference does (docs/model.md).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tensor/codec/fp4.h"
#include "tensor/codec/fp8.h"

namespace dsv4 {

// Exponent of the power-of-two scale of a block of E4M3 values: 2^ceil(log2(max(|x|, 1e-4) / 448)).
inline int Fp8ScaleExponent(const float* x, int64_t n) {
  float largest = 1e-4f;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  return CeilLog2(largest / kE4m3Max);
}

// Exponent of the power-of-two scale of a block of E2M1 values: 2^ceil(log2(max(|x|, 6 * 2^-126) / 6)).
inline int Fp4ScaleExponent(const float* x, int64_t n) {
  float largest = kE2m1Max * 0x1p-126f;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  return CeilLog2(largest / kE2m1Max);
}

// y[i] = E4M3(x[i] / s) * s in blocks of `block`, each with its own s. y may be x.
inline void RoundToFp8Blocks(const float* x, float* y, int64_t n, int64_t block) {
  for (int64_t b = 0; b < n; b += block) {
    const int64_t size = std::min(block, n - b);
    const float scale = Exp2Int(Fp8ScaleExponent(x + b, size));
    const float inverse = 1.0f / scale;
    for (int64_t i = b; i < b + size; ++i) y[i] = E4m3ToF32(F32ToE4m3(x[i] * inverse)) * scale;
  }
}

// y[i] = E2M1(x[i] / (sb * s)) * sb * s with s = max|x| / (6 * 448) over the row and sb = E4M3(max|x in block| / (6 s))
// per 16. The global scale is taken from this row, now: a checkpoint's static `input_scale` can be so small that sb
// leaves E4M3's range (docs/numerics.md). A row that holds a NaN becomes NaN: E2M1 has no code for it. y may be x.
inline void RoundToNvfp4(const float* x, float* y, int64_t n) {
  float largest = 0.0f;
  bool has_nan = false;
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    has_nan |= x[i] != x[i];
  }
  if (has_nan) {
    std::fill(y, y + n, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const float global = largest / (kE2m1Max * kE4m3Max);
  if (!(global >= 0x1p-126f)) {  // a row of zeros (or so small that the scale itself would vanish)
    std::fill(y, y + n, 0.0f);
    return;
  }
  for (int64_t b = 0; b < n; b += 16) {
    const int64_t end = std::min(b + 16, n);
    float block_max = 0.0f;
    for (int64_t i = b; i < end; ++i) block_max = std::max(block_max, std::fabs(x[i]));
    const float block_scale = E4m3ToF32(F32ToE4m3(std::max(block_max / (kE2m1Max * global), 0x1p-9f)));
    const float scale = block_scale * global;
    for (int64_t i = b; i < end; ++i) y[i] = E2m1ToF32(F32ToE2m1(x[i] / scale)) * scale;
  }
}

}  // namespace dsv4
