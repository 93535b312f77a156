#include "base/sample_math.h"

#include <cmath>
#include <limits>

#include "base/random.h"
#include "gtest/gtest.h"

namespace dsv4 {
namespace {

TEST(Random, WordsAreFixed) {
  // Computed with Python integers from the definition in base/random.h.
  EXPECT_EQ(RandomBits(0, 0), 0xa706dd2f4d197e6fu);
  EXPECT_EQ(RandomBits(1, 0), 0x5e41ab087439611eu);
  EXPECT_EQ(RandomBits(42, 1000000), 0x8505da9e8a915c81u);
}

TEST(SamplerExp, MatchesLibm) {
  for (double x = 0; x >= -700; x -= 0.0137) {
    const double expected = std::exp(x);
    ASSERT_NEAR(sample::ExpNonPositive(x) / expected, 1.0, 2e-15) << x;
  }
  EXPECT_EQ(sample::ExpNonPositive(0.0), 1.0);
  EXPECT_EQ(sample::ExpNonPositive(-0.0), 1.0);
  EXPECT_EQ(sample::ExpNonPositive(-709.0), 0.0);
  EXPECT_EQ(sample::ExpNonPositive(-std::numeric_limits<double>::infinity()), 0.0);
}

}  // namespace
}  // namespace dsv4
