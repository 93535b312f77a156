#include "base/str.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "base/check.h"
#include "base/random.h"
#include "dsv4/status.h"

namespace dsv4 {
namespace {

TEST(StrCat, JoinsEveryKindOfPiece) {
  const std::string name = "kv";
  EXPECT_EQ(StrCat(), "");
  EXPECT_EQ(StrCat("tensor ", name, ": ", 12, ' ', std::string_view("bytes"), ' ', true, false),
            "tensor kv: 12 bytes truefalse");
  EXPECT_EQ(StrCat(std::numeric_limits<int64_t>::min(), ' ', std::numeric_limits<uint64_t>::max()),
            "-9223372036854775808 18446744073709551615");
  EXPECT_EQ(StrCat(int8_t{-3}, ' ', uint8_t{200}), "-3 200");  // numbers, not characters
}

TEST(StrCat, FloatsAreTheShortestExactForm) {
  EXPECT_EQ(StrCat(0.1f), "0.1");
  EXPECT_EQ(StrCat(0.1), "0.1");
  EXPECT_EQ(StrCat(1e-45f), "1e-45");
  EXPECT_EQ(StrCat(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(StrCat(std::nan("")), "nan");
  EXPECT_EQ(StrCat(std::numeric_limits<double>::denorm_min()), "5e-324");
}

TEST(CheckDeathTest, NamesConditionValuesAndPlace) {
  EXPECT_DEATH(DSV4_CHECK(1 > 2, "left ", 1), "str_test.cc:[0-9]+: check failed: 1 > 2 left 1");
  EXPECT_DEATH(DSV4_CHECK_EQ(2 + 2, 5), "\\(4 vs 5\\)");
  DSV4_CHECK(true);
}

TEST(Status, ResultHoldsAValueOrTheReasonWhyNot) {
  Result<std::string> good = std::string("x");
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(*good, "x");
  const Result<std::string> bad = NotFound("no such file");
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(bad.status().message(), "no such file");
  EXPECT_EQ(Result<int>(Status{}).status().code(), StatusCode::kInternal);  // an ok status is not a value
  Result<std::unique_ptr<int>> owned = std::make_unique<int>(7);
  const std::unique_ptr<int> taken = std::move(owned).value();
  EXPECT_EQ(*taken, 7);
}

Status Forward(Status s, bool* reached) {
  DSV4_RETURN_IF_ERROR(s);
  *reached = true;
  return {};
}

Result<int> AddOne(Result<int> r) {
  DSV4_ASSIGN_OR_RETURN(const int value, std::move(r));
  return value + 1;
}

TEST(Status, MacrosReturnEarly) {
  bool reached = false;
  EXPECT_EQ(Forward(Cancelled("stop"), &reached).code(), StatusCode::kCancelled);
  EXPECT_FALSE(reached);
  EXPECT_TRUE(Forward({}, &reached).ok());
  EXPECT_TRUE(reached);
  EXPECT_EQ(*AddOne(41), 42);
  EXPECT_EQ(AddOne(DataLoss("bad")).status().message(), "bad");
}

// The first words of the streams are part of the contract: seeded sampling and fixtures depend on them.
TEST(Random, IsTheSameEverywhere) {
  static_assert(RandomBits(0, 0) != RandomBits(0, 1) && RandomBits(0, 0) != RandomBits(1, 0));
  static_assert(MixBits(0) == 0 && MixBits(0x9e3779b97f4a7c15u) == 0xe220a8397b1dcdafu);  // SplitMix64's first output
  double sum = 0, square = 0;
  for (uint64_t i = 0; i < 100000; ++i) {
    const double u = RandomUniform(7, i);
    ASSERT_TRUE(u >= 0 && u < 1);
    sum += u;
    square += u * u;
  }
  EXPECT_NEAR(sum / 100000, 0.5, 5e-3);  // 5 standard errors
  EXPECT_NEAR(square / 100000, 1.0 / 3, 5e-3);
}

}  // namespace
}  // namespace dsv4
