#include "ops/rope/rope.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "ops/rope_angles/rope_angles.h"
#include "support/compare.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

void RopeOnGpu(const ExecContext&, const RopeArgs& a) {
  Mirror gpu;
  Rope(gpu.ctx(), {.x = gpu.Out(a.x), .cos_sin = gpu.In(a.cos_sin), .inverse = a.inverse});
  gpu.Finish();
}

// f32 [T, pairs, 2] for angles in float64.
std::vector<float> CosSin(const std::vector<double>& angles) {
  std::vector<float> cs;
  for (const double a : angles) {
    cs.push_back(static_cast<float>(std::cos(a)));
    cs.push_back(static_cast<float>(std::sin(a)));
  }
  return cs;
}

DSV4_DEVICE_TEST(Rope, RotatesInterleavedPairsOfTheTrailingChannels) {
  // A quarter turn of pair 0, half a turn of pair 1. Pairs are neighbours (4, 5), (6, 7), not halves (4, 6), (5, 7).
  GuardBuffer<float> cs(Shape{1, 2, 2}, {0, 1, -1, 0});
  for (const auto& c : Places(on, Rope, RopeOnGpu)) {
    GuardBuffer<float> x(Shape{1, 1, 8}, {1, 2, 3, 4, 5, 6, 7, 8});
    c.run({.x = x.tensor(), .cos_sin = cs.tensor()});
    EXPECT_TRUE(Near(x.span(), std::vector<float>{1, 2, 3, 4, -6, 5, -7, -8}, 0)) << c.name;
    c.run({.x = x.tensor(), .cos_sin = cs.tensor(), .inverse = true});
    EXPECT_TRUE(Near(x.span(), std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}, 0)) << c.name;
  }
}

DSV4_DEVICE_TEST(Rope, MatchesTheFormulaForEveryHeadAndLeavesTheOtherChannelsAlone) {
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
          const double co = cs[(r / n * pairs + i) * 2], si = cs[(r / n * pairs + i) * 2 + 1] * (inverse ? -1.0 : 1.0);
          const size_t at = static_cast<size_t>(r * dh + 5 + 2 * i);
          const double a = before[at], b = before[at + 1];
          want[at] = a * co - b * si;
          want[at + 1] = a * si + b * co;
          bound[at] = Gamma(2) * (std::fabs(a * co) + std::fabs(b * si));
          bound[at + 1] = Gamma(2) * (std::fabs(a * si) + std::fabs(b * co));
        }
      }
      for (const auto& c : Places(on, Rope, RopeOnGpu)) {
        GuardBuffer<float> x(Shape{t, n, dh}, before);
        c.run({.x = x.tensor(), .cos_sin = cs.tensor(), .inverse = inverse});
        EXPECT_TRUE(WithinBounds(x.span(), want, bound)) << c.name;
        for (int64_t r = 0; r < t * n; ++r) {  // bound 0: bit for bit
          for (int64_t i = 0; i < 5; ++i) ASSERT_EQ(x[r * dh + i], before[static_cast<size_t>(r * dh + i)]);
        }
        c.run({.x = x.tensor(), .cos_sin = cs.tensor(), .inverse = !inverse});
        EXPECT_TRUE(Near(x.span(), before, 1e-5)) << c.name;  // |x| <= 6: two rotations, cos^2 + sin^2 to 2^-23
      }
    }
  }
}

// Products and sums are rounded one by one everywhere: the same bits, infinities and extremes included.
DSV4_DEVICE_TEST(Rope, BitEqualToReference) {
  Random random(4);
  for (const Shape& shape : {Shape{1, 1, 2}, Shape{3, 5, 13}, Shape{67, 3, 96}, Shape{2, 64, 512}}) {
    for (const int64_t pairs : {int64_t{1}, shape[2] / 2, shape[2] / 4}) {
      if (pairs == 0) continue;
      for (const bool inverse : {false, true}) {
        GuardBuffer<float> cs({shape[0], pairs, 2}, random.Normals(shape[0] * pairs * 2));
        const std::vector<float> before = random.Hostiles(shape.num_elements());
        GuardBuffer<float> want(shape, before);
        Rope({.reference_ops = true}, {.x = want.tensor(), .cos_sin = cs.tensor(), .inverse = inverse});
        for (const auto& c : Places(on, Rope, RopeOnGpu)) {
          GuardBuffer<float> x(shape, before);
          c.run({.x = x.tensor(), .cos_sin = cs.tensor(), .inverse = inverse});
          EXPECT_TRUE(BitEqual(x.span(), want.span())) << c.name << " " << shape.ToString() << " " << pairs;
        }
      }
    }
  }
}

// The purpose of RoPE: a product depends only on the distance of two positions.
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
    RopeAngles({}, {.positions = positions.tensor(), .frequencies = frequencies.tensor(), .cos_sin = cs.tensor()});
    Rope({}, {.x = x.tensor(), .cos_sin = cs.tensor()});
    double sum = 0;
    for (int64_t i = 0; i < 64; ++i) sum += static_cast<double>(x[i]) * x[64 + i];
    return sum;
  };
  EXPECT_NEAR(product(5, 3), product(105, 103), 1e-3);
  EXPECT_NEAR(product(40, 0), product(1040, 1000), 5e-3);  // angles near 1,000 are rounded to 2^-15
  EXPECT_GT(std::fabs(product(5, 3) - product(5, 4)), 1e-2);
}

DSV4_DEVICE_TEST(Rope, ARowDoesNotDependOnItsBatch) {
  Random random(3);
  const int64_t t = 20, n = 2, dh = 12;
  GuardBuffer<float> cs(Shape{t, 4, 2}, random.Normals(t * 8));
  const std::vector<float> before = random.Normals(t * n * dh);
  for (const auto& c : Places(on, Rope, RopeOnGpu)) {
    GuardBuffer<float> all(Shape{t, n, dh}, before);
    c.run({.x = all.tensor(), .cos_sin = cs.tensor()});
    for (const int64_t r : {0, 9, 19}) {
      GuardBuffer<float> one(Shape{1, n, dh}, {before.begin() + r * n * dh, before.begin() + (r + 1) * n * dh});
      c.run({.x = one.tensor(), .cos_sin = {cs.row(r).data(), DType::kF32, {1, 4, 2}}});
      EXPECT_TRUE(BitEqual(one.span(), all.row(r))) << c.name;
    }
  }
}

}  // namespace
}  // namespace dsv4::test
