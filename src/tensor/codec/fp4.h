// E2M1, the 4-bit code of NVFP4 and MXFP4: 0 0.5 1 1.5 2 3 4 6 and their negatives (bit 3). Two codes a byte, the low
// nibble first. OCP "Microscaling Formats (MX) Specification"; block scales: tensor/quant_tensor.h.
#pragma once

#include <cmath>
#include <cstdint>

namespace dsv4 {

inline constexpr float kE2m1Max = 6.0f;

inline constexpr float kE2m1Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                          -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

inline float E2m1ToF32(uint8_t code) { return kE2m1Values[code & 15]; }

// Rounds to nearest, ties to the even code; values beyond 6 saturate. NaN has no code: the caller must exclude it.
inline uint8_t F32ToE2m1(float x) {
  const float a = std::fabs(x);
  const uint8_t sign = std::signbit(x) ? 8 : 0;
  uint8_t code;
  if (a <= 0.25f)
    code = 0;
  else if (a < 0.75f)
    code = 1;
  else if (a <= 1.25f)
    code = 2;
  else if (a < 1.75f)
    code = 3;
  else if (a <= 2.5f)
    code = 4;
  else if (a < 3.5f)
    code = 5;
  else if (a <= 5.0f)
    code = 6;
  else
    code = 7;
  return static_cast<uint8_t>(sign | code);
}

inline uint8_t GetNibble(const uint8_t* codes, int64_t index) {
  const uint8_t byte = codes[index >> 1];
  return (index & 1) ? static_cast<uint8_t>(byte >> 4) : static_cast<uint8_t>(byte & 15);
}

}  // namespace dsv4
