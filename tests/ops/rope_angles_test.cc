#include "ops/rope_angles/rope_angles.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

void RopeAnglesOnGpu(const ExecContext&, const RopeAnglesArgs& a) {
  Mirror gpu;
  RopeAngles(gpu.ctx(),
             {.positions = gpu.In(a.positions), .frequencies = gpu.In(a.frequencies), .cos_sin = gpu.Out(a.cos_sin)});
  gpu.Finish();
}

// docs/dev/model.md, Positions: the plain table, and the compressed layers' table with YaRN.
std::vector<float> PlainTable() {
  std::vector<float> f;
  for (int i = 0; i < 32; ++i) f.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / 64)));
  return f;
}
std::vector<float> CompressedTable() {
  std::vector<float> f;
  for (int i = 0; i < 32; ++i) {
    const double base = std::pow(160000.0, -2.0 * i / 64), ramp = std::clamp((i - 15) / 10.0, 0.0, 1.0);
    f.push_back(static_cast<float>(base * (1 - ramp) + base / 16 * ramp));
  }
  return f;
}

TEST(RopeAngles, TablesOfTheReleasedModels) {  // the check values of docs/dev/model.md
  EXPECT_FLOAT_EQ(PlainTable()[1], 0.7498942093f);
  EXPECT_FLOAT_EQ(PlainTable()[31], 1.333521432e-4f);
  EXPECT_FLOAT_EQ(CompressedTable()[1], 0.6876560219f);
  EXPECT_FLOAT_EQ(CompressedTable()[16], 2.265625e-3f);
  EXPECT_FLOAT_EQ(CompressedTable()[20], 2.969777783e-4f);
  EXPECT_FLOAT_EQ(CompressedTable()[24], 1.953125e-5f);
  EXPECT_FLOAT_EQ(CompressedTable()[31], 5.680529037e-7f);
}

DSV4_DEVICE_TEST(RopeAngles, CosineAndSineOfTheFloat32AngleUpToAMillion) {
  std::vector<int64_t> at = {0, 1, 2, 127, 128, 4095, 65535, 65536, 524287, 524288, 999999, 1048574, 1048575};
  for (int64_t p = 3; p < 1048575; p = p * 3 + 1) at.push_back(p);
  const int64_t t = static_cast<int64_t>(at.size());
  GuardBuffer<int64_t> positions(Shape{t}, at);
  for (const std::vector<float>& table : {PlainTable(), CompressedTable()}) {
    GuardBuffer<float> frequencies(Shape{32}, table);
    std::vector<double> want;
    for (const int64_t p : at) {
      for (const float f : table) {
        const float angle = static_cast<float>(p) * f;  // the model's own product, rounded once to float32
        want.push_back(static_cast<double>(std::cos(static_cast<long double>(angle))));
        want.push_back(static_cast<double>(std::sin(static_cast<long double>(angle))));
      }
    }
    for (const auto& c : Places(on, RopeAngles, RopeAnglesOnGpu)) {
      GuardBuffer<float> cs(Shape{t, 32, 2});
      c.run({.positions = positions.tensor(), .frequencies = frequencies.tensor(), .cos_sin = cs.tensor()});
      // Half a unit in the last place of a number below 1, and float64's own error.
      EXPECT_TRUE(Near(cs.span(), want, 1e-15, kUnitRoundoff)) << c.name;
      EXPECT_EQ(cs[0], 1.0f);  // position 0
      EXPECT_EQ(cs[1], 0.0f);
    }
  }
}

// Results are correctly rounded, except for a few float64 ulps before the rounding to float32. They may differ by one
// float32 ulp if the value is that close to a tie, about once in 2^28.
DSV4_DEVICE_TEST(RopeAngles, MatchesReferenceAtAnyPosition) {
  Random random(1);
  std::vector<int64_t> at = {0, 1, 2, 127, 128, 4095, 1'048'575};
  for (int i = 0; i < 2000; ++i) at.push_back(random.Index(1'048'576));
  const int64_t t = static_cast<int64_t>(at.size());
  for (const int64_t pairs : {1, 3, 32}) {
    std::vector<float> f = {1.0f};
    for (int64_t i = 1; i < pairs; ++i)
      f.push_back(static_cast<float>(std::pow(1e4, -static_cast<double>(i) / static_cast<double>(pairs))));
    GuardBuffer<int64_t> positions({t}, at);
    GuardBuffer<float> frequencies({pairs}, f), want({t, pairs, 2});
    RopeAngles({.reference_ops = true},
               {.positions = positions.tensor(), .frequencies = frequencies.tensor(), .cos_sin = want.tensor()});
    for (const auto& c : Places(on, RopeAngles, RopeAnglesOnGpu)) {
      GuardBuffer<float> got({t, pairs, 2});
      c.run({.positions = positions.tensor(), .frequencies = frequencies.tensor(), .cos_sin = got.tensor()});
      EXPECT_TRUE(Near(got.span(), want.span(), 0, 0x1p-23)) << c.name;
      int64_t differ = 0;
      for (int64_t i = 0; i < got.size(); ++i) differ += got[i] != want[i];
      EXPECT_LE(differ, 1) << c.name;
    }
  }
}

TEST(RopeAnglesDeathTest, NoTokensAreFineWrongShapesAbort) {
  GuardBuffer<int64_t> positions(Shape{0});
  GuardBuffer<float> frequencies(Shape{4}, {1, 1, 1, 1}), cs(Shape{0, 4, 2});
  RopeAngles({}, {.positions = positions.tensor(), .frequencies = frequencies.tensor(), .cos_sin = cs.tensor()});
  GuardBuffer<float> wrong(Shape{0, 3, 2});
  EXPECT_DEATH(
      RopeAngles({}, {.positions = positions.tensor(), .frequencies = frequencies.tensor(), .cos_sin = wrong.tensor()}),
      "check failed");
}

}  // namespace
}  // namespace dsv4::test
