// The op of ops/sample against the sampler of dsv4/sampling.h: they must draw the same tokens.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "base/sample_math.h"
#include "base/str.h"
#include "dsv4/sampling.h"
#include "engine/sampling/sampler_loops.h"
#include "ops/sample/sample.h"
#include "support/sample_fixture.h"

namespace dsv4::test {
namespace {

TEST(SampleOp, ItsExponentialIsTheSamplers) {
  Random random(1);
  for (int i = 0; i < 100000; ++i) {
    const auto x = static_cast<float>(-random.Uniform(0, i % 2 ? 1 : 800));
    std::vector<double> weights;
    internal::Softmax(std::vector<float>(9, x), 0, 1, weights);  // eight at a time, and one
    ASSERT_EQ(sample::ExpNonPositive(x), weights[0]) << x;
    ASSERT_EQ(sample::ExpNonPositive(x), weights[8]) << x;
  }
  EXPECT_EQ(sample::ExpNonPositive(0), 1.0);
  EXPECT_EQ(sample::ExpNonPositive(-std::numeric_limits<double>::infinity()), 0.0);
}

TEST(SampleOp, ItsLogarithmIsExactToTheLastBits) {
  EXPECT_EQ(sample::Bits(sample::NegativeLog(1.0)), sample::Bits(0.0));  // a GPU compares times by their bits
  for (int e = 0; e >= -53; --e) {
    for (const double m : {1.0, 0.75, 0.70710678118654757, 0.70710678118654746, 0.5000001, 0.99999999999999989}) {
      const double x = std::ldexp(m, e);
      if (x < 0x1p-53 || x == 1.0) continue;
      EXPECT_NEAR(sample::NegativeLog(x) / -std::log(x), 1.0, 4e-15) << x;
    }
  }
  Random random(3);
  for (int i = 0; i < 100000; ++i) {
    const double x = i % 2 ? random.Uniform(0x1p-53, 1) : 1 - random.Uniform(0x1p-52, 0.01);
    ASSERT_NEAR(sample::NegativeLog(x) / -std::log(x), 1.0, 4e-15) << x;
  }
}

TEST(SampleOp, ChoosesWhatTheSamplerChooses) {
  Random random(2);
  for (int trial = 0; trial < 400; ++trial) {
    SCOPED_TRACE(trial);
    const SampleCase c = RandomSampleCase(random, /*v=*/1 + random.Index(trial % 10 == 0 ? 5000 : 300));
    auto sampler = Sampler::Create(c.params, c.v);
    ASSERT_TRUE(sampler.ok()) << sampler.status().message();
    sampler.value()->AddPrompt(c.prompt);
    SampleState state(c);
    for (int step = 0; step < 6; ++step) {
      std::vector<float> logits = RandomLogits(random, c.v);
      const auto want = sampler.value()->Sample(logits, c.allowed);
      int32_t got = -7;
      float logprob = 0;
      Sample({}, {.logits = {logits.data(), DType::kF32, {1, c.v}},
                  .rows = &state.row,
                  .tokens = {&got, DType::kI32, {1}},
                  .logprobs = {&logprob, DType::kF32, {1}}});
      if (!want.ok()) {
        ASSERT_LT(got, 0) << want.status().message();
        EXPECT_TRUE(std::isnan(logprob));
        continue;
      }
      ASSERT_EQ(got, want.value().id) << step;
      // If an infinite logit is not allowed, the drawn token has probability 0.
      if (logprob != want.value().logprob) {
        EXPECT_NEAR(logprob, want.value().logprob, 1e-5 * (1 + std::fabs(logprob)));
      }
    }
  }
}

TEST(SampleOp, NamesWhatIsWrongAndKeepsItsState) {
  const float inf = std::numeric_limits<float>::infinity();
  const int32_t banned_id = 1;
  const float banned = -inf;
  uint16_t counts[3] = {};
  SampleRow row{.num_bias = 1, .seed = 5, .output_count = counts, .bias_ids = &banned_id, .bias = &banned};
  const auto sample = [&](std::vector<float> logits) {
    int32_t id = 7;
    Sample({}, {.logits = {logits.data(), DType::kF32, {1, 3}}, .rows = &row, .tokens = {&id, DType::kI32, {1}}});
    return id;
  };
  EXPECT_EQ(sample({0, std::nanf(""), 0}), kSampleNan);
  EXPECT_EQ(sample({-inf, -inf, -inf}), kSampleNothing);
  EXPECT_EQ(sample({-inf, 3, -inf}), kSampleBanned);
  EXPECT_EQ(row.num_outputs, 0u);
  EXPECT_EQ(counts[0] + counts[1] + counts[2], 0);
  EXPECT_GE(sample({0, 1, 2}), 0);
  EXPECT_EQ(row.num_outputs, 1u);
  EXPECT_EQ(counts[0] + counts[2], 1);
}

}  // namespace
}  // namespace dsv4::test
