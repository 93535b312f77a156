#include "layers/linear.h"

#include <vector>

#include <gtest/gtest.h>

#include "ops/linear/linear.h"
#include "ops/round_activation/round_activation.h"
#include "support/compare.h"
#include "support/quant_fixture.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

constexpr int64_t kTokens = 3, kRows = 24, kCols = 256;

struct Buffers {
  std::vector<float> x, y, scratch;
  Tensor View(std::vector<float>& v, int64_t cols) const { return {v.data(), DType::kF32, {kTokens, cols}}; }
};

// The input is rounded exactly when the weight is quantised and the mode rounds.
TEST(QuantLinear, RoundsTheInputOfQuantisedWeightsOnly) {
  const ExecContext ctx;
  for (const QuantCase& kind : AllQuantCases()) {
    Random random(7);
    const QuantFixture w(random, kind, kRows, kCols);
    for (const ActivationDtype mode :
         {ActivationDtype::kNative, ActivationDtype::kF32, ActivationDtype::kFp8, ActivationDtype::kNvfp4,
          ActivationDtype::kInt8, ActivationDtype::kInt16, ActivationDtype::kInt24}) {
      Buffers b;
      for (int64_t i = 0; i < kTokens * kCols; ++i) b.x.push_back(random.Normal());
      const std::vector<float> before = b.x;
      b.y.resize(kTokens * kRows);
      b.scratch.resize(kTokens * kCols);
      const Tensor x = b.View(b.x, kCols), y = b.View(b.y, kRows), scratch_floats = b.View(b.scratch, kCols);
      const Room scratch{static_cast<uint8_t*>(scratch_floats.data), scratch_floats.num_bytes()};
      QuantLinear(ctx, mode, x, {{w.tensor(), InputOf(ctx, mode, w.tensor()), y}}, scratch);
      EXPECT_EQ(b.x, before) << "the input itself stays as it was";
      const std::vector<float> got = b.y;

      if (IsInteger(mode)) {  // linear rounds its input itself
        Linear(ctx, {.x = x, .parts = {{w.tensor(), y}}, .activation = mode});
        EXPECT_EQ(got, b.y) << kind.name();
        const bool rounds = kind.format == WeightFormat::kMxfp4 || kind.format == WeightFormat::kNvfp4;
        EXPECT_EQ(RoundsInput(mode, w.tensor()), rounds) << kind.name();
        Linear(ctx, {.x = x, .parts = {{w.tensor(), y}}});
        EXPECT_EQ(got != b.y, rounds) << kind.name();
        continue;
      }
      if (w.tensor().quantised()) RoundActivation(ctx, {.x = x, .y = x, .mode = mode});
      Linear(ctx, {.x = x, .parts = {{w.tensor(), y}}});
      EXPECT_EQ(got, b.y) << kind.name();
      const bool rounds = w.tensor().quantised() && (mode == ActivationDtype::kFp8 || mode == ActivationDtype::kNvfp4);
      EXPECT_EQ(b.x != before, rounds) << kind.name();
      EXPECT_EQ(RoundsInput(mode, w.tensor()), rounds) << kind.name();
    }
  }
}

}  // namespace
}  // namespace dsv4::test
