// BF16: the upper half of a float32. Encoding rounds to nearest, ties to even; NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace dsv4 {

inline float Bf16ToF32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline uint16_t F32ToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);  // quiet NaN
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline float RoundToBf16(float x) { return Bf16ToF32(F32ToBf16(x)); }

// Reads an element of an unaligned array (a tensor of a mapped file).
template <typename T>
T LoadUnaligned(const void* p, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const uint8_t*>(p) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

}  // namespace dsv4
