#include "ops/round_activation/round_activation.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/contexts.h"
#include "support/guard_buffer.h"
#include "support/random.h"
#include "tensor/codec/activation.h"

namespace dsv4 {
namespace {

using test::BitEqual;
using test::GuardBuffer;
using test::Random;

constexpr ActivationDtype kModes[] = {ActivationDtype::kNative, ActivationDtype::kF32, ActivationDtype::kFp8,
                                      ActivationDtype::kNvfp4, ActivationDtype::kInt8, ActivationDtype::kInt16, ActivationDtype::kInt24};

// Rows of very different size: a scale that leaks from one row to another shows.
std::vector<float> Rows(Random& random, int64_t t, int64_t k) {
  std::vector<float> x;
  for (int64_t r = 0; r < t; ++r) {
    const std::vector<float> row = r % 3 == 2 ? random.Hostiles(k) : random.Normals(k, r % 2 ? 1e-3f : 1e3f);
    x.insert(x.end(), row.begin(), row.end());
  }
  return x;
}

TEST(RoundActivation, EveryModeRoundsByRowAsItsCodecDoes) {
  Random random(1);
  for (const int64_t k : {16, 128, 200, 1}) {
    const int64_t t = 13;
    GuardBuffer<float> x(Shape{t, k}, Rows(random, t, k));
    for (const ActivationDtype mode : kModes) {
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
      for (const test::NamedContext& c : test::AllContexts()) {
        GuardBuffer<float> y(Shape{t, k});
        RoundActivation(c.ctx, {.x = x.tensor(), .y = y.tensor(), .mode = mode});
        EXPECT_TRUE(BitEqual(y.span(), want)) << c.name << ", K " << k;
        GuardBuffer<float> in_place(Shape{t, k}, x.values());
        RoundActivation(c.ctx, {.x = in_place.tensor(), .y = in_place.tensor(), .mode = mode});
        EXPECT_TRUE(BitEqual(in_place.span(), want)) << c.name << ", K " << k << ", in place";
      }
    }
  }
}

// Lessons 4 and 6: the scale is this row's, taken now. A row gives the same bits alone, beside larger rows, and after
// another call.
TEST(RoundActivation, Lesson06ARowDoesNotDependOnItsBatchOrThePast) {
  Random random(2);
  const int64_t t = 9, k = 160;
  GuardBuffer<float> x(Shape{t, k}, Rows(random, t, k));
  for (const ActivationDtype mode : {ActivationDtype::kFp8, ActivationDtype::kNvfp4, ActivationDtype::kInt8, ActivationDtype::kInt16, ActivationDtype::kInt24}) {
    for (const test::NamedContext& c : test::AllContexts()) {
      GuardBuffer<float> all(Shape{t, k});
      RoundActivation(c.ctx, {.x = x.tensor(), .y = all.tensor(), .mode = mode});
      for (int64_t r = t - 1; r >= 0; --r) {
        GuardBuffer<float> one(Shape{1, k});
        RoundActivation(c.ctx, {.x = {x.row(r).data(), DType::kF32, {1, k}}, .y = one.tensor(), .mode = mode});
        EXPECT_TRUE(BitEqual(one.span(), all.row(r))) << c.name << ", row " << r;
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
    EXPECT_TRUE(test::RelativeRmsWithin(y.row(0), x.row(0), mode == ActivationDtype::kFp8 ? 0.04 : 0.12));
    // FP8 has a floor (1e-4) under the block's maximum: steps of 2^-31 there. NVFP4 has none.
    EXPECT_TRUE(test::RelativeRmsWithin(y.row(1), x.row(1), mode == ActivationDtype::kFp8 ? 0.04 : 0.12));
  }
}

}  // namespace
}  // namespace dsv4
