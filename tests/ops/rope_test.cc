#include "ops/rope/rope.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "ops/rope_angles/rope_angles.h"
#include "support/compare.h"
#include "support/contexts.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4 {
namespace {

using test::BitEqual;
using test::GuardBuffer;
using test::Near;
using test::Random;

// f32 [T, pairs, 2] for angles in float64.
std::vector<float> CosSin(const std::vector<double>& angles) {
  std::vector<float> cs;
  for (const double a : angles) {
    cs.push_back(static_cast<float>(std::cos(a)));
    cs.push_back(static_cast<float>(std::sin(a)));
  }
  return cs;
}

TEST(Rope, RotatesInterleavedPairsOfTheTrailingChannels) {
  // A quarter turn of pair 0, half a turn of pair 1. Pairs are neighbours (4, 5), (6, 7), not halves (4, 6), (5, 7).
  GuardBuffer<float> cs(Shape{1, 2, 2}, {0, 1, -1, 0});
  for (const test::NamedContext& c : test::AllContexts()) {
    GuardBuffer<float> x(Shape{1, 1, 8}, {1, 2, 3, 4, 5, 6, 7, 8});
    Rope(c.ctx, {.x = x.tensor(), .cos_sin = cs.tensor()});
    EXPECT_TRUE(Near(x.span(), std::vector<float>{1, 2, 3, 4, -6, 5, -7, -8}, 0)) << c.name;
    Rope(c.ctx, {.x = x.tensor(), .cos_sin = cs.tensor(), .inverse = true});
    EXPECT_TRUE(Near(x.span(), std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}, 0)) << c.name;
  }
}

TEST(Rope, MatchesTheFormulaForEveryHeadAndLeavesTheOtherChannelsAlone) {
  Random random(1);
  for (const int64_t pairs : {1, 4, 32}) {
    const int64_t t = 11, n = 3, dh = 2 * pairs + 5;  // an odd number of channels before the rotated ones
    std::vector<double> angles;
    for (int64_t i = 0; i < t * pairs; ++i) angles.push_back(random.Uniform(-1e4, 1e4));
    GuardBuffer<float> cs(Shape{t, pairs, 2}, CosSin(angles));
    const std::vector<float> before = random.Normals(t * n * dh);
    for (const bool inverse : {false, true}) {
      std::vector<double> want(before.begin(), before.end()), bound(before.size(), 0.0);
      for (int64_t r = 0; r < t * n; ++r) {
        for (int64_t i = 0; i < pairs; ++i) {
          const double co = cs[(r / n * pairs + i) * 2],
                       si = cs[(r / n * pairs + i) * 2 + 1] * (inverse ? -1.0 : 1.0);
          const size_t at = static_cast<size_t>(r * dh + 5 + 2 * i);
          const double a = before[at], b = before[at + 1];
          want[at] = a * co - b * si;
          want[at + 1] = a * si + b * co;
          bound[at] = test::Gamma(2) * (std::fabs(a * co) + std::fabs(b * si));
          bound[at + 1] = test::Gamma(2) * (std::fabs(a * si) + std::fabs(b * co));
        }
      }
      for (const test::NamedContext& c : test::AllContexts()) {
        GuardBuffer<float> x(Shape{t, n, dh}, before);
        Rope(c.ctx, {.x = x.tensor(), .cos_sin = cs.tensor(), .inverse = inverse});
        EXPECT_TRUE(test::WithinBounds(x.span(), want, bound)) << c.name;
        for (int64_t r = 0; r < t * n; ++r) {  // bound 0: bit for bit
          for (int64_t i = 0; i < 5; ++i) ASSERT_EQ(x[r * dh + i], before[static_cast<size_t>(r * dh + i)]);
        }
        Rope(c.ctx, {.x = x.tensor(), .cos_sin = cs.tensor(), .inverse = !inverse});
        EXPECT_TRUE(Near(x.span(), before, 1e-5)) << c.name;  // |x| <= 6: two rotations, cos^2 + sin^2 to 2^-23
      }
    }
  }
}

// What RoPE is for: a product depends on the distance of two positions only.
TEST(Rope, ProductsDependOnDistanceOnly) {
  Random random(2);
  const std::vector<float> q = random.Normals(64), k = random.Normals(64);
  std::vector<float> f;
  for (int i = 0; i < 32; ++i) f.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / 64)));
  const auto product = [&](int64_t at_q, int64_t at_k) {
    GuardBuffer<int64_t> positions(Shape{2}, {at_q, at_k});
    GuardBuffer<float> frequencies(Shape{32}, f), cs(Shape{2, 32, 2}), x(Shape{2, 1, 64});
    std::copy(q.begin(), q.end(), x.data());
    std::copy(k.begin(), k.end(), x.data() + 64);
    RopeAngles(
        {}, {.positions = positions.tensor(), .frequencies = frequencies.tensor(), .cos_sin = cs.tensor()});
    Rope({}, {.x = x.tensor(), .cos_sin = cs.tensor()});
    double sum = 0;
    for (int64_t i = 0; i < 64; ++i) sum += static_cast<double>(x[i]) * x[64 + i];
    return sum;
  };
  EXPECT_NEAR(product(5, 3), product(105, 103), 1e-3);
  EXPECT_NEAR(product(40, 0), product(1040, 1000), 5e-3);  // angles near 1,000 are rounded to 2^-15
  EXPECT_GT(std::fabs(product(5, 3) - product(5, 4)), 1e-2);
}

TEST(Rope, ARowDoesNotDependOnItsBatch) {
  Random random(3);
  const int64_t t = 20, n = 2, dh = 12;
  GuardBuffer<float> cs(Shape{t, 4, 2}, random.Normals(t * 8));
  const std::vector<float> before = random.Normals(t * n * dh);
  for (const test::NamedContext& c : test::AllContexts()) {
    GuardBuffer<float> all(Shape{t, n, dh}, before);
    Rope(c.ctx, {.x = all.tensor(), .cos_sin = cs.tensor()});
    for (const int64_t r : {0, 9, 19}) {
      GuardBuffer<float> one(Shape{1, n, dh}, {before.begin() + r * n * dh, before.begin() + (r + 1) * n * dh});
      Rope(c.ctx, {.x = one.tensor(), .cos_sin = {cs.row(r).data(), DType::kF32, {1, 4, 2}}});
      EXPECT_TRUE(BitEqual(one.span(), all.row(r))) << c.name;
    }
  }
}

}  // namespace
}  // namespace dsv4
