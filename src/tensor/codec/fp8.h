// E4M3 (fn: largest 448, no infinities, 0x7F and 0xFF are NaN) and the E8M0 scale 2^(b - 127), 0xFF is NaN.
// OCP "8-bit Floating Point Specification" and "Microscaling Formats (MX) Specification".
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace dsv4 {

inline constexpr float kE4m3Max = 448.0f;

inline float E4m3ToF32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7Fu;
  if (magnitude == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000u);
  // In a float's exponent and mantissa the code is 2^-120 times its value, subnormals included.
  return std::bit_cast<float>(sign | (magnitude << 20)) * 0x1p120f;
}

// Rounds to nearest, ties to even; values beyond 448 saturate; NaN becomes NaN.
inline uint8_t F32ToE4m3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const float a = std::bit_cast<float>(bits & 0x7FFFFFFFu);
  if (std::isnan(a)) return static_cast<uint8_t>(sign | 0x7Fu);
  if (a >= kE4m3Max) return static_cast<uint8_t>(sign | 0x7Eu);
  if (a < 0x1p-6f) {  // subnormal: multiples of 2^-9; adding 2^14 leaves exactly those bits (float's ulp there is 2^-9)
    const float shifted = a + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) & 0xFu));
  }
  uint32_t m = bits & 0x7FFFFFFFu;
  m += 0x7FFFFu + ((m >> 20) & 1u);                      // keep 3 mantissa bits, ties to even
  const uint32_t code = (m >> 20) - ((127u - 7u) << 3);  // rebias the exponent
  return static_cast<uint8_t>(sign | (code > 0x7Eu ? 0x7Eu : code));
}

inline float E8m0ToF32(uint8_t code) {
  if (code == 0xFF) return std::bit_cast<float>(0x7FC00000u);
  if (code == 0) return 0x1p-127f;
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

// The exponent e of the smallest power of two with 2^e >= x, for finite normal x > 0 (read off the bits).
inline int CeilLog2(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<int>((bits >> 23) & 0xFFu) - 127 + ((bits & 0x7FFFFFu) != 0 ? 1 : 0);
}

inline uint8_t E8m0FromExponent(int e) { return static_cast<uint8_t>(e + 127); }  // -127 <= e <= 127

// 2^e for -126 <= e <= 127.
inline float Exp2Int(int e) { return std::bit_cast<float>(static_cast<uint32_t>(e + 127) << 23); }

}  // namespace dsv4
