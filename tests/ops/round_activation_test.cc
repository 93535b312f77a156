#include "ops/round_activation/round_activation.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/random.h"
#include "tensor/codec/activation.h"

namespace dsv4::test {
namespace {

void RoundActivationOnGpu(const ExecContext&, const RoundActivationArgs& a) {
  Mirror gpu;
  const Tensor y = gpu.Out(a.y);
  RoundActivation(gpu.ctx(), {.x = gpu.In(a.x, a.y, y), .y = y, .mode = a.mode});
  gpu.Finish();
}

constexpr ActivationDtype kModes[] = {ActivationDtype::kNative, ActivationDtype::kF32,  ActivationDtype::kFp8,
                                      ActivationDtype::kNvfp4,  ActivationDtype::kInt8, ActivationDtype::kInt16,
                                      ActivationDtype::kInt24};

// Only a CPU has the integer modes.
bool Has(On on, ActivationDtype mode) { return on == On::kCpu || !IsInteger(mode); }

// Rows of very different size: a scale that leaks from one row to another shows.
std::vector<float> Rows(Random& random, int64_t t, int64_t k) {
  std::vector<float> x;
  for (int64_t r = 0; r < t; ++r) {
    const std::vector<float> row = r % 3 == 2 ? random.Hostiles(k) : random.Normals(k, r % 2 ? 1e-3f : 1e3f);
    x.insert(x.end(), row.begin(), row.end());
  }
  return x;
}

DSV4_DEVICE_TEST(RoundActivation, EveryModeRoundsByRowAsItsCodecDoes) {
  Random random(1);
  for (const int64_t k : {16, 128, 200, 1, 15, 300}) {
    const int64_t t = 13;
    GuardBuffer<float> x(Shape{t, k}, Rows(random, t, k));
    for (const ActivationDtype mode : kModes) {
      if (!Has(on, mode)) continue;
      std::vector<float> want(static_cast<size_t>(t * k));
      for (int64_t r = 0; r < t; ++r) {
        float* row = want.data() + r * k;
        if (mode == ActivationDtype::kFp8)
          RoundToFp8Blocks(x.row(r).data(), row, k, 128);
        else if (mode == ActivationDtype::kNvfp4)
          RoundToNvfp4(x.row(r).data(), row, k);
        else if (IsInteger(mode))
          RoundToIntegerBlocks(x.row(r).data(), row, k, IntegerBytes(mode));
        else
          std::copy(x.row(r).begin(), x.row(r).end(), row);
      }
      for (const auto& c : Places(on, RoundActivation, RoundActivationOnGpu)) {
        GuardBuffer<float> y(Shape{t, k});
        c.run({.x = x.tensor(), .y = y.tensor(), .mode = mode});
        EXPECT_TRUE(BitEqual(y.span(), want)) << c.name << ", K " << k;
        GuardBuffer<float> in_place(Shape{t, k}, x.values());
        c.run({.x = in_place.tensor(), .y = in_place.tensor(), .mode = mode});
        EXPECT_TRUE(BitEqual(in_place.span(), want)) << c.name << ", K " << k << ", in place";
      }
    }
  }
}

// The scale is computed from this row in this call. A row gives the same bits alone, next to larger rows, and after
// another call.
DSV4_DEVICE_TEST(RoundActivation, Lesson06ARowDoesNotDependOnItsBatchOrThePast) {
  Random random(2);
  const int64_t t = 9, k = 160;
  GuardBuffer<float> x(Shape{t, k}, Rows(random, t, k));
  for (const ActivationDtype mode : {ActivationDtype::kFp8, ActivationDtype::kNvfp4, ActivationDtype::kInt8,
                                     ActivationDtype::kInt16, ActivationDtype::kInt24}) {
    if (!Has(on, mode)) continue;
    for (const auto& c : Places(on, RoundActivation, RoundActivationOnGpu)) {
      GuardBuffer<float> all(Shape{t, k});
      c.run({.x = x.tensor(), .y = all.tensor(), .mode = mode});
      for (int64_t r = t - 1; r >= 0; --r) {
        GuardBuffer<float> one(Shape{1, k});
        c.run({.x = {x.row(r).data(), DType::kF32, {1, k}}, .y = one.tensor(), .mode = mode});
        EXPECT_TRUE(BitEqual(one.span(), all.row(r))) << c.name << ", row " << r;
      }
    }
  }
}

// Subnormals, zeros, and rows that hold a NaN or an infinity.
DSV4_DEVICE_TEST(RoundActivation, DamagedRowsHaveTheBitsOfTheReference) {
  Random random(4);
  for (const int64_t k : {1, 16, 200, 4096}) {
    const int64_t t = 67;
    GuardBuffer<float> x(Shape{t, k}, Rows(random, t, k)), want(Shape{t, k});
    for (int64_t r = 0; r < t; ++r) {
      if (r % 11 == 5) x.row(r)[static_cast<size_t>(random.Index(k))] = std::numeric_limits<float>::quiet_NaN();
      if (r % 11 == 7) x.row(r)[static_cast<size_t>(random.Index(k))] = -std::numeric_limits<float>::infinity();
      if (r % 11 == 9) std::ranges::fill(x.row(r), r % 2 ? -0.0f : 1e-42f);
    }
    for (const ActivationDtype mode : kModes) {
      if (!Has(on, mode)) continue;
      RoundActivation({.reference_ops = true}, {.x = x.tensor(), .y = want.tensor(), .mode = mode});
      for (const auto& c : Places(on, RoundActivation, RoundActivationOnGpu)) {
        GuardBuffer<float> y(Shape{t, k});
        c.run({.x = x.tensor(), .y = y.tensor(), .mode = mode});
        EXPECT_TRUE(BitEqual(y.span(), want.span())) << c.name << ", K " << k << ", mode " << static_cast<int>(mode);
      }
    }
  }
}

TEST(RoundActivation, Lesson04SmallRowsKeepTheirMagnitude) {
  Random random(3);
  GuardBuffer<float> x(Shape{2, 128}, random.Normals(256));
  for (float& v : x.row(1)) v *= 1e-5f;
  for (const ActivationDtype mode : {ActivationDtype::kFp8, ActivationDtype::kNvfp4}) {
    GuardBuffer<float> y(Shape{2, 128});
    RoundActivation({}, {.x = x.tensor(), .y = y.tensor(), .mode = mode});
    EXPECT_TRUE(RelativeRmsWithin(y.row(0), x.row(0), mode == ActivationDtype::kFp8 ? 0.04 : 0.12));
    // FP8 has a lower bound (1e-4) for the block's maximum: steps of 2^-31 there. NVFP4 has none.
    EXPECT_TRUE(RelativeRmsWithin(y.row(1), x.row(1), mode == ActivationDtype::kFp8 ? 0.04 : 0.12));
  }
}

}  // namespace
}  // namespace dsv4::test
