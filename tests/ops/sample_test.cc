// Laws of the op; tests/engine/sample_op_test.cc compares it with the engine's sampler.
#include "ops/sample/sample.h"

#include <array>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "ops/kernels.h"
#include "support/guard_buffer.h"

namespace dsv4::test {
namespace {

int32_t SampleOne(const std::vector<float>& logits, SampleRow& row, float* logprob = nullptr) {
  GuardBuffer<float> x({1, static_cast<int64_t>(logits.size())}, logits), p({1});
  GuardBuffer<int32_t> token({1});
  Sample({}, {.logits = x.tensor(), .rows = &row, .tokens = token.tensor(), .logprobs = p.tensor()});
  if (logprob != nullptr) *logprob = p[0];
  return token[0];
}

TEST(Sample, GreedyTakesTheLargestAndTheLowestOfEquals) {
  SampleRow row{.temperature = 0};
  float logprob = 0;
  EXPECT_EQ(SampleOne({1, 3, 2, 3}, row, &logprob), 1);
  EXPECT_NEAR(logprob, 3 - std::log(std::exp(1.0) + std::exp(2.0) + 2 * std::exp(3.0)), 1e-6);
  EXPECT_EQ(row.num_outputs, 1u);
}

TEST(Sample, TopKOneIsGreedyAtAnyTemperature) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SampleRow row{.temperature = 5, .top_k = 1, .seed = seed};
    EXPECT_EQ(SampleOne({0.5f, 0.6f, 0.4f}, row), 1);
  }
}

TEST(Sample, FollowsTheDistribution) {
  // Probabilities 1/2, 1/4, 1/4; 4,000 draws: three standard deviations are below 0.025.
  const std::vector<float> logits = {std::log(2.0f), 0, 0};
  std::array<int, 3> count{};
  SampleRow row{.seed = 11};
  for (int i = 0; i < 4000; ++i) ++count[static_cast<size_t>(SampleOne(logits, row))];
  EXPECT_NEAR(count[0] / 4000.0, 0.5, 0.025);
  EXPECT_NEAR(count[1] / 4000.0, 0.25, 0.025);
  EXPECT_EQ(row.num_outputs, 4000u);
}

TEST(Sample, DamagedRowsAreNamedAndKeepTheirState) {
  const float infinity = std::numeric_limits<float>::infinity();
  SampleRow row{.seed = 3, .num_outputs = 9};
  EXPECT_EQ(SampleOne({1, std::nanf(""), 2}, row), kSampleNan);
  EXPECT_EQ(SampleOne({-infinity, -infinity}, row), kSampleNothing);
  const int32_t ids[2] = {0, 1};
  const float bias[2] = {-infinity, -infinity};
  row.num_bias = 2, row.bias_ids = ids, row.bias = bias;
  EXPECT_EQ(SampleOne({1, 2}, row), kSampleBanned);
  EXPECT_EQ(row.num_outputs, 9u);
}

}  // namespace
}  // namespace dsv4::test
