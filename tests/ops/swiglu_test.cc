#include "ops/swiglu/swiglu.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

void SwigluOnGpu(const ExecContext&, const SwigluArgs& a) {
  Mirror gpu;
  const Tensor y = gpu.Out(a.y);
  Swiglu(gpu.ctx(), {.gate = gpu.In(a.gate, a.y, y),
                     .up = gpu.In(a.up, a.y, y),
                     .weight = gpu.In(a.weight),
                     .limit = a.limit,
                     .y = y});
  gpu.Finish();
}

double Formula(double gate, double up, double weight, double limit) {
  gate = std::min(gate, limit);
  up = std::clamp(up, -limit, limit);
  return gate / (1 + std::exp(-gate)) * up * weight;
}

// exp to two units, a sum, a quotient, two products: 8 roundings; results below the normal range lose more.
constexpr double kRelative = Gamma(8), kAbsolute = 0x1p-125;

std::vector<float> Apply(const Place<SwigluArgs>& at, std::vector<float> gate, std::vector<float> up, float limit) {
  const int64_t f = static_cast<int64_t>(gate.size());
  GuardBuffer<float> g(Shape{1, f}, gate), u(Shape{1, f}, up), y(Shape{1, f});
  at.run({.gate = g.tensor(), .up = u.tensor(), .limit = limit, .y = y.tensor()});
  return y.values();
}

DSV4_DEVICE_TEST(Swiglu, MatchesTheFormulaInFloat64) {
  Random random(1);
  for (const int64_t f : {1, 3, 64, 129, 257, 2048}) {
    const int64_t r = 11;
    GuardBuffer<float> gate(Shape{r, f}, random.Normals(r * f, 6)), up(Shape{r, f}, random.Normals(r * f, 6)),
        weight(Shape{r}, random.Normals(r));
    for (const bool weighted : {false, true}) {
      std::vector<double> want;
      for (int64_t i = 0; i < r * f; ++i) want.push_back(Formula(gate[i], up[i], weighted ? weight[i / f] : 1.0f, 10));
      const Tensor w = weighted ? weight.tensor() : Tensor{};
      for (const auto& c : Places(on, Swiglu, SwigluOnGpu)) {
        GuardBuffer<float> y(Shape{r, f});
        c.run({.gate = gate.tensor(), .up = up.tensor(), .weight = w, .limit = 10, .y = y.tensor()});
        EXPECT_TRUE(Near(y.span(), want, kAbsolute, kRelative)) << c.name;
        GuardBuffer<float> as_gate(Shape{r, f}, gate.values()), as_up(Shape{r, f}, up.values());
        c.run({.gate = as_gate.tensor(), .up = up.tensor(), .weight = w, .limit = 10, .y = as_gate.tensor()});
        c.run({.gate = gate.tensor(), .up = as_up.tensor(), .weight = w, .limit = 10, .y = as_up.tensor()});
        EXPECT_TRUE(BitEqual(as_gate.span(), y.span())) << c.name << ", in place of gate";
        EXPECT_TRUE(BitEqual(as_up.span(), y.span())) << c.name << ", in place of up";
      }
    }
  }
}

DSV4_DEVICE_TEST(Swiglu, GateIsClampedFromAboveOnly) {
  for (const auto& c : Places(on, Swiglu, SwigluOnGpu)) {
    const std::vector<float> y = Apply(c, {10, 50, 1e30f, std::numeric_limits<float>::infinity(), -50, -20},
                                       {1, 1, 1, 1, 1, 1}, 10);
    for (const size_t i : {1, 2, 3}) EXPECT_EQ(y[i], y[0]) << c.name;
    EXPECT_TRUE(Near(y,
                     std::vector<double>{Formula(10, 1, 1, 10), Formula(10, 1, 1, 10), Formula(10, 1, 1, 10),
                                         Formula(10, 1, 1, 10), -50 / (1 + std::exp(50.0)), -20 / (1 + std::exp(20.0))},
                     0, kRelative))
        << c.name;  // silu(-20) = -4e-8, silu(-10) would be -4.5e-4
  }
}

DSV4_DEVICE_TEST(Swiglu, UpIsClampedOnBothSides) {
  for (const auto& c : Places(on, Swiglu, SwigluOnGpu)) {
    const std::vector<float> y = Apply(c, {2, 2, 2, 2}, {10, 50, -50, -std::numeric_limits<float>::infinity()}, 10);
    EXPECT_EQ(y[1], y[0]) << c.name;
    EXPECT_EQ(y[2], -y[0]) << c.name;
    EXPECT_EQ(y[3], -y[0]) << c.name;
  }
}

DSV4_DEVICE_TEST(Swiglu, ClampsComeBeforeTheProduct) {
  for (const auto& c : Places(on, Swiglu, SwigluOnGpu)) {
    const std::vector<float> y = Apply(c, {9, 50}, {9, 50}, 10);  // products 81 and 100 stay above the limit
    EXPECT_TRUE(Near(y, std::vector<double>{Formula(9, 9, 1, 10), Formula(10, 10, 1, 10)}, 0, kRelative)) << c.name;
    EXPECT_GT(y[0], 80.0f);
  }
}

DSV4_DEVICE_TEST(Swiglu, ExtremesAreFiniteAndNanStaysNan) {
  for (const auto& c : Places(on, Swiglu, SwigluOnGpu)) {
    const std::vector<float> y = Apply(c, {-1e4f, -std::numeric_limits<float>::max(), 0, -0.0f, std::nanf(""), 1},
                                       {1, 1, 5, 5, 1, std::nanf("")}, 10);
    for (const size_t i : {0, 1, 2, 3}) EXPECT_EQ(y[i], 0.0f) << c.name;
    EXPECT_TRUE(std::isnan(y[4])) << c.name;
    EXPECT_TRUE(std::isnan(y[5])) << c.name;
  }
}

DSV4_DEVICE_TEST(Swiglu, NoRows) {
  GuardBuffer<float> x(Shape{0, 5}), y(Shape{0, 5});
  for (const auto& c : Places(on, Swiglu, SwigluOnGpu)) {
    c.run({.gate = x.tensor(), .up = x.tensor(), .limit = 10, .y = y.tensor()});
  }
}

}  // namespace
}  // namespace dsv4::test
