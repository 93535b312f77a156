#include "tensor/codec/fp4.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

#include "support/random.h"

namespace dsv4 {
namespace {

// The definition: sign, 2 exponent bits with bias 1, 1 mantissa bit, one subnormal.
double E2m1Definition(int code) {
  const int exponent = (code >> 1) & 3, mantissa = code & 1;
  const double magnitude = exponent == 0 ? mantissa * 0.5 : std::ldexp(1.0 + mantissa * 0.5, exponent - 1);
  return (code & 8) ? -magnitude : magnitude;
}

int NearestE2m1(double x) {
  const double a = std::fabs(x);
  int best = 0;
  for (int c = 1; c < 8; ++c) {
    const double d = std::fabs(a - E2m1Definition(c)), b = std::fabs(a - E2m1Definition(best));
    if (d < b || (d == b && c % 2 == 0)) best = c;
  }
  return best | (std::signbit(x) ? 8 : 0);
}

TEST(E2m1, EveryCodeDecodesToItsDefinitionAndBack) {
  for (int c = 0; c < 16; ++c) {
    const float x = E2m1ToF32(static_cast<uint8_t>(c));
    EXPECT_EQ(static_cast<double>(x), E2m1Definition(c));
    EXPECT_EQ(std::signbit(x), c >= 8);
    EXPECT_EQ(F32ToE2m1(x), c);
  }
}

TEST(E2m1, EveryMidpointAndItsFloatNeighboursRoundAsAnExactSearchSays) {
  for (int c = 0; c < 7; ++c) {
    const float middle = static_cast<float>((E2m1Definition(c) + E2m1Definition(c + 1)) / 2);
    for (const float m : {middle, -middle}) {
      EXPECT_EQ(F32ToE2m1(m), NearestE2m1(m)) << m;
      EXPECT_EQ(F32ToE2m1(m) & 1, 0) << m;
      for (const float towards : {-100.0f, 100.0f}) {
        const float x = std::nextafter(m, towards);
        EXPECT_EQ(F32ToE2m1(x), NearestE2m1(x)) << x;
      }
    }
  }
  test::Random random(2);
  for (int i = 0; i < 20000; ++i) {
    const float x = 2 * random.Normal();
    ASSERT_EQ(F32ToE2m1(x), NearestE2m1(x)) << x;
  }
}

TEST(E2m1, SaturatesAtSix) {
  for (const float x : {5.01f, 6.0f, 7.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(F32ToE2m1(x), 7) << x;
    EXPECT_EQ(F32ToE2m1(-x), 15) << x;
  }
}

TEST(E2m1, LowNibbleIsTheEvenElement) {
  const uint8_t bytes[] = {0x21, 0x43};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(GetNibble(bytes, i), i + 1);
}

}  // namespace
}  // namespace dsv4
