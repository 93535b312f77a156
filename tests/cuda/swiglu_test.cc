#include "ops/swiglu/swiglu.h"

#include <cmath>
#include <limits>
#include <vector>

#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4 {
void SwigluCuda(const ExecContext& ctx, const SwigluArgs& args);
}

namespace dsv4::test {
namespace {

// Both sides: exp to two units, a sum, a quotient, two products (tests/ops/swiglu_test.cc).
constexpr double kRelative = 2 * Gamma(8), kAbsolute = 0x1p-124;

TEST(CudaSwiglu, MatchesReference) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const int64_t f : {1, 3, 255, 257, 2048}) {
    for (const int64_t r : {1, 11}) {
      for (const bool weighted : {false, true}) {
        GuardBuffer<float> gate({r, f}, random.Normals(r * f, 6)), up({r, f}, random.Normals(r * f, 6)),
            weight({r}, random.Normals(r)), want({r, f}), y({r, f});
        const Tensor w = weighted ? weight.tensor() : Tensor{};
        Swiglu({.reference_ops = true}, {.gate = gate.tensor(), .up = up.tensor(), .weight = w, .limit = 10, .y = want.tensor()});
        Mirror gpu;
        SwigluCuda(gpu.ctx(), {.gate = gpu.In(gate.tensor()), .up = gpu.In(up.tensor()), .weight = gpu.In(w), .limit = 10,
                               .y = gpu.Out(y.tensor())});
        const Tensor in_place = gpu.Out(up.tensor());
        SwigluCuda(gpu.ctx(), {.gate = gpu.In(gate.tensor()), .up = in_place, .weight = gpu.In(w), .limit = 10, .y = in_place});
        gpu.Finish();
        EXPECT_TRUE(Near(y.span(), want.span(), kAbsolute, kRelative)) << f;
        EXPECT_TRUE(BitEqual(up.span(), y.span())) << f;
      }
    }
  }
}

TEST(CudaSwiglu, Extremes) {
  DSV4_GPU_OR_SKIP();
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const std::vector<float> gates{10, 50, infinity, -50, -1e4f, -3e38f, 0, nan, 1, 2, 2}, ups{1, 1, 1, 1, 1, 1, 5, 1, nan, 50, -infinity};
  const int64_t f = static_cast<int64_t>(gates.size());
  GuardBuffer<float> gate({1, f}, gates), up({1, f}, ups), want({1, f}), y({1, f});
  Swiglu({.reference_ops = true}, {.gate = gate.tensor(), .up = up.tensor(), .limit = 10, .y = want.tensor()});
  Mirror gpu;
  SwigluCuda(gpu.ctx(), {.gate = gpu.In(gate.tensor()), .up = gpu.In(up.tensor()), .limit = 10, .y = gpu.Out(y.tensor())});
  gpu.Finish();
  EXPECT_TRUE(Near(y.span(), want.span(), kAbsolute, kRelative));
  EXPECT_TRUE(std::isnan(y[7]) && std::isnan(y[8]));
}

TEST(CudaSwiglu, NoRows) {
  DSV4_GPU_OR_SKIP();
  GuardBuffer<float> x(Shape{0, 5}), y(Shape{0, 5});
  Mirror gpu;
  SwigluCuda(gpu.ctx(), {.gate = gpu.In(x.tensor()), .up = gpu.In(x.tensor()), .limit = 10, .y = gpu.Out(y.tensor())});
  gpu.Finish();
}

}  // namespace
}  // namespace dsv4::test
