#include "ops/rope_angles/rope_angles.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/contexts.h"
#include "support/guard_buffer.h"

namespace dsv4 {
namespace {

using test::GuardBuffer;

// docs/model.md, Positions: the plain table, and the compressed layers' table with YaRN.
std::vector<float> Plain() {
  std::vector<float> f;
  for (int i = 0; i < 32; ++i) f.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / 64)));
  return f;
}
std::vector<float> Compressed() {
  std::vector<float> f;
  for (int i = 0; i < 32; ++i) {
    const double base = std::pow(160000.0, -2.0 * i / 64), ramp = std::clamp((i - 15) / 10.0, 0.0, 1.0);
    f.push_back(static_cast<float>(base * (1 - ramp) + base / 16 * ramp));
  }
  return f;
}

TEST(RopeAngles, TablesOfTheReleasedModels) {  // the check values of docs/model.md
  EXPECT_FLOAT_EQ(Plain()[1], 0.7498942093f);
  EXPECT_FLOAT_EQ(Plain()[31], 1.333521432e-4f);
  EXPECT_FLOAT_EQ(Compressed()[1], 0.6876560219f);
  EXPECT_FLOAT_EQ(Compressed()[16], 2.265625e-3f);
  EXPECT_FLOAT_EQ(Compressed()[20], 2.969777783e-4f);
  EXPECT_FLOAT_EQ(Compressed()[24], 1.953125e-5f);
  EXPECT_FLOAT_EQ(Compressed()[31], 5.680529037e-7f);
}

TEST(RopeAngles, CosineAndSineOfTheFloat32AngleUpToAMillion) {
  std::vector<int64_t> at = {0, 1, 2, 127, 128, 4095, 65535, 65536, 524287, 524288, 999999, 1048574, 1048575};
  for (int64_t p = 3; p < 1048575; p = p * 3 + 1) at.push_back(p);
  const int64_t t = static_cast<int64_t>(at.size());
  GuardBuffer<int64_t> positions(Shape{t}, at);
  for (const std::vector<float>& table : {Plain(), Compressed()}) {
    GuardBuffer<float> frequencies(Shape{32}, table);
    std::vector<double> want;
    for (const int64_t p : at) {
      for (const float f : table) {
        const float angle = static_cast<float>(p) * f;  // the model's own product, rounded once to float32
        want.push_back(static_cast<double>(std::cos(static_cast<long double>(angle))));
        want.push_back(static_cast<double>(std::sin(static_cast<long double>(angle))));
      }
    }
    for (const test::NamedContext& c : test::AllContexts()) {
      GuardBuffer<float> cs(Shape{t, 32, 2});
      RopeAngles(
          c.ctx,
          {.positions = positions.tensor(), .frequencies = frequencies.tensor(), .cos_sin = cs.tensor()});
      // Half a unit in the last place of a number below 1, and float64's own error.
      EXPECT_TRUE(test::Near(cs.span(), want, 1e-15, test::kUnitRoundoff)) << c.name;
      EXPECT_EQ(cs[0], 1.0f);  // position 0
      EXPECT_EQ(cs[1], 0.0f);
    }
  }
}

TEST(RopeAnglesDeathTest, NoTokensAreFineWrongShapesAbort) {
  GuardBuffer<int64_t> positions(Shape{0});
  GuardBuffer<float> frequencies(Shape{4}, {1, 1, 1, 1}), cs(Shape{0, 4, 2});
  RopeAngles({},
             {.positions = positions.tensor(), .frequencies = frequencies.tensor(), .cos_sin = cs.tensor()});
  GuardBuffer<float> wrong(Shape{0, 3, 2});
  EXPECT_DEATH(RopeAngles({}, {.positions = positions.tensor(),
                               .frequencies = frequencies.tensor(),
                               .cos_sin = wrong.tensor()}),
               "check failed");
}

}  // namespace
}  // namespace dsv4
