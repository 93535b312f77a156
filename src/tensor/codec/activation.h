// Rounding of vectors to block formats and back ("simulated quantisation"): as in the model's training (reference:
// DeepSeek's inference code, docs/dev/model.md), or as in W4A4 inference (docs/dev/model.md).
#pragma once

#include <algorithm>
#include <bit>
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

// y[i] = E4M3(x[i] / s) * s in blocks of `block`; each block has its own s. y may be x.
inline void RoundToFp8Blocks(const float* x, float* y, int64_t n, int64_t block) {
  for (int64_t b = 0; b < n; b += block) {
    const int64_t size = std::min(block, n - b);
    const float scale = Exp2Int(Fp8ScaleExponent(x + b, size));
    const float inverse = 1.0f / scale;
    for (int64_t i = b; i < b + size; ++i) y[i] = E4m3ToF32(F32ToE4m3(x[i] * inverse)) * scale;
  }
}

// y[i] = E2M1(x[i] / (sb * s)) * sb * s with s = max|x| / (6 * 448) over the row and sb = E4M3(max|x in block| / (6 s))
// per 16. The global scale s is computed from this row: with a checkpoint's static `input_scale`, which can be very
// small, sb may leave E4M3's range (docs/dev/numerics.md). A row with a NaN becomes all NaN, because E2M1 has no NaN. y
// may be x.
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
  if (!(global >= 0x1p-126f)) {  // all zeros, or so small that the scale would underflow
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

inline constexpr int64_t kIntegerBlockSize = 32;

// The largest integer of one, two or three bytes whose digits are in -128 .. 127: 127, 32639, 8355711.
constexpr int32_t LargestInteger(int bytes) { return bytes == 1 ? 127 : 127 + 256 * LargestInteger(bytes - 1); }

// Returns the scale of one block and writes its integers q[i]: x[i] is about q[i] * scale, |q[i]| <=
// LargestInteger(bytes), rounded to nearest, ties to even. One or two bytes: scale = max|x| / LargestInteger. Three
// bytes: a product with that scale would round as much as q does, so the scale is the smallest power of two that fits.
// A block whose max|x| is below 2^-100 becomes zeros. A block with a NaN or an infinity becomes zeros with a NaN scale.
inline float QuantiseToIntegers(const float* x, int64_t n, int bytes, int32_t* q) {
  // of |x|: compared as integers they have the order of the numbers, and a NaN is the largest
  int32_t largest_bits = 0;
  for (int64_t i = 0; i < n; ++i) largest_bits = std::max(largest_bits, std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF);
  const float largest = std::bit_cast<float>(largest_bits);
  const int32_t most = LargestInteger(bytes);
  const bool finite = largest_bits < 0x7F800000;
  if (!finite || largest < 0x1p-100f) {
    std::fill(q, q + n, 0);
    return finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  const float ratio = largest / static_cast<float>(most), scale = bytes < 3 ? ratio : Exp2Int(CeilLog2(ratio));
  const float inverse = bytes < 3 ? static_cast<float>(most) / largest : 1.0f / scale;
  for (int64_t i = 0; i < n; ++i) {
    // Adding 2^23 leaves the nearest integer in the low bits.
    const int32_t magnitude = std::bit_cast<int32_t>(std::fabs(x[i]) * inverse + 0x1p23f) - 0x4B000000;
    q[i] = std::bit_cast<int32_t>(x[i]) < 0 ? -std::min(magnitude, most) : std::min(magnitude, most);
  }
  return scale;
}

// y[i] = q[i] * scale in blocks of kIntegerBlockSize. y may be x.
inline void RoundToIntegerBlocks(const float* x, float* y, int64_t n, int bytes) {
  int32_t q[kIntegerBlockSize];
  for (int64_t b = 0; b < n; b += kIntegerBlockSize) {
    const int64_t size = std::min(kIntegerBlockSize, n - b);
    const float scale = QuantiseToIntegers(x + b, size, bytes, q);
    for (int64_t i = 0; i < size; ++i) y[b + i] = static_cast<float>(q[i]) * scale;
  }
}

}  // namespace dsv4
