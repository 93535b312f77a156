#include "tensor/codec/fp8.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

#include "support/random.h"

namespace dsv4 {
namespace {

// The definition: sign, 4 exponent bits with bias 7, 3 mantissa bits, subnormals.
double E4m3Definition(int code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1.0 + mantissa / 8.0, exponent - 7);
  return (code & 0x80) ? -magnitude : magnitude;
}

// Exact search over all magnitudes: the nearest, ties to the even code, nothing beyond 448.
int NearestE4m3(double x) {
  const double a = std::fabs(x);
  int best = 0;
  for (int c = 1; c <= 0x7E; ++c) {
    const double d = std::fabs(a - E4m3Definition(c)), b = std::fabs(a - E4m3Definition(best));
    if (d < b || (d == b && c % 2 == 0)) best = c;
  }
  return best | (std::signbit(x) ? 0x80 : 0);
}

TEST(E4m3, EveryCodeDecodesToItsDefinitionAndBack) {
  for (int c = 0; c < 256; ++c) {
    const uint8_t code = static_cast<uint8_t>(c);
    const float x = E4m3ToF32(code);
    if ((c & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(x)) << c;
      EXPECT_EQ(std::signbit(x), c >= 0x80) << c;
    } else {
      EXPECT_EQ(static_cast<double>(x), E4m3Definition(c)) << c;
      EXPECT_EQ(std::signbit(x), c >= 0x80) << c;  // minus zero, too
    }
    EXPECT_EQ(F32ToE4m3(x), code) << c;
  }
  EXPECT_EQ(E4m3ToF32(0x01), 0x1p-9f);
  EXPECT_EQ(E4m3ToF32(0x08), 0x1p-6f);
  EXPECT_EQ(E4m3ToF32(0x7E), 448.0f);
}

TEST(E4m3, EveryMidpointAndItsFloatNeighboursRoundAsAnExactSearchSays) {
  for (int c = 0; c < 0x7E; ++c) {
    const float middle = static_cast<float>((E4m3Definition(c) + E4m3Definition(c + 1)) / 2);  // exact: one more bit
    ASSERT_EQ(static_cast<double>(middle) * 2, E4m3Definition(c) + E4m3Definition(c + 1));
    for (const float m : {middle, -middle}) {
      EXPECT_EQ(F32ToE4m3(m), NearestE4m3(m)) << c;
      EXPECT_EQ(F32ToE4m3(m) & 1, 0) << c;
      EXPECT_EQ(F32ToE4m3(std::nextafter(m, 0.0f)), NearestE4m3(std::nextafter(m, 0.0f))) << c;
      EXPECT_EQ(F32ToE4m3(std::nextafter(m, m * 2)), NearestE4m3(std::nextafter(m, m * 2))) << c;
    }
    for (const float v : {E4m3ToF32(static_cast<uint8_t>(c)), -E4m3ToF32(static_cast<uint8_t>(c))}) {
      EXPECT_EQ(F32ToE4m3(std::nextafter(v, 1000.0f)), NearestE4m3(std::nextafter(v, 1000.0f))) << c;
      EXPECT_EQ(F32ToE4m3(std::nextafter(v, -1000.0f)), NearestE4m3(std::nextafter(v, -1000.0f))) << c;
    }
  }
}

TEST(E4m3, RandomNumbersRoundAsAnExactSearchSays) {
  test::Random random(1);
  for (int i = 0; i < 20000; ++i) {
    const float x = random.Normal() * std::ldexp(1.0f, static_cast<int>(random.Index(24)) - 14);
    ASSERT_EQ(F32ToE4m3(x), NearestE4m3(x)) << x;
  }
}

TEST(E4m3, SaturatesAndKeepsNan) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float x : {448.0f, 463.9f, 464.0f, 480.0f, 1e30f, std::numeric_limits<float>::max(), inf}) {
    EXPECT_EQ(F32ToE4m3(x), 0x7E) << x;
    EXPECT_EQ(F32ToE4m3(-x), 0xFE) << x;
  }
  EXPECT_EQ(F32ToE4m3(std::nanf("")), 0x7F);
  EXPECT_EQ(F32ToE4m3(-std::nanf("")), 0xFF);
}

TEST(E4m3, UnderflowKeepsTheSign) {
  EXPECT_EQ(F32ToE4m3(0x1p-10f), 0x00);  // half of the smallest: a tie, to even
  EXPECT_EQ(F32ToE4m3(std::nextafter(0x1p-10f, 1.0f)), 0x01);
  EXPECT_EQ(F32ToE4m3(-0x1p-149f), 0x80);
  EXPECT_EQ(F32ToE4m3(-0.0f), 0x80);
}

TEST(E8m0, EveryCodeIsAPowerOfTwoAndTheLastIsNan) {
  for (int c = 0; c < 255; ++c) {
    EXPECT_EQ(static_cast<double>(E8m0ToF32(static_cast<uint8_t>(c))), std::ldexp(1.0, c - 127)) << c;
    EXPECT_EQ(E8m0FromExponent(c - 127), c);
  }
  EXPECT_TRUE(std::isnan(E8m0ToF32(0xFF)));
}

TEST(ScaleExponent, CeilLog2AtPowersOfTwoAndTheirNeighbours) {
  for (int e = -126; e <= 127; ++e) {
    const float power = std::ldexp(1.0f, e);
    EXPECT_EQ(CeilLog2(power), e);
    EXPECT_EQ(CeilLog2(std::nextafter(power, std::numeric_limits<float>::infinity())), e + 1);
    if (e > -126) {
      EXPECT_EQ(CeilLog2(std::nextafter(power, 0.0f)), e);
    }
    EXPECT_EQ(Exp2Int(e), power);
  }
}

}  // namespace
}  // namespace dsv4
