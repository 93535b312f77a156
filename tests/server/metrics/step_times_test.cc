// Predicted step times and the budgets that follow from them.
#include "server/metrics/step_times.h"

#include <random>

#include "gtest/gtest.h"

namespace dsv4::server {
namespace {

double Seconds(int64_t generating, int64_t prompt_tokens) {
  return 0.004 + 0.0005 * static_cast<double>(generating) + 0.0002 * static_cast<double>(prompt_tokens);
}

TEST(StepTimes, FindsTheCostsOfMixedSteps) {
  StepTimes times;
  EXPECT_EQ(times.PromptTokens(4, 0.1, 512), 32);  // no prompt was timed
  EXPECT_EQ(times.Sequences(0.1, 64), 64);
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const auto generating = static_cast<int64_t>(random() % 64);
    const auto prompt = i % 3 == 0 ? 0 : static_cast<int64_t>(random() % 400);
    times.Add(generating, prompt, Seconds(generating, prompt));
  }
  EXPECT_NEAR(times.Expect(10, 100), Seconds(10, 100), 0.05 * Seconds(10, 100));
  EXPECT_NEAR(times.Expect(60, 0), Seconds(60, 0), 0.05 * Seconds(60, 0));
  const int64_t budget = times.PromptTokens(20, 0.05, 512);  // 0.036 s are left
  EXPECT_GT(budget, 165);
  EXPECT_LE(budget, 182);
  EXPECT_EQ(times.PromptTokens(20, 1, 512), 512);
  EXPECT_EQ(times.PromptTokens(64, 0.03, 512), 0);
  const int64_t sequences = times.Sequences(0.02, 64);  // 0.016 s are left
  EXPECT_GE(sequences, 29);
  EXPECT_LE(sequences, 33);
  EXPECT_EQ(times.Sequences(0.001, 64), 64);  // one sequence alone is too slow: no limit would help
}

TEST(StepTimes, KeepsADistanceWhereTimesScatter) {
  StepTimes calm, noisy;
  std::mt19937 random(2);
  std::exponential_distribution<double> late(4);
  for (int i = 0; i < 400; ++i) {
    const int64_t prompt = 16 + static_cast<int64_t>(random() % 100);
    calm.Add(8, prompt, Seconds(8, prompt));
    noisy.Add(8, prompt, Seconds(8, prompt) * (1 + late(random)));
  }
  const int64_t of_calm = calm.PromptTokens(8, 0.05, 512), of_noisy = noisy.PromptTokens(8, 0.05, 512);
  EXPECT_LT(of_noisy, of_calm);
  int within = 0;
  for (int i = 0; i < 1000; ++i) within += Seconds(8, of_noisy) * (1 + late(random)) <= 0.05 ? 1 : 0;
  EXPECT_GT(within, 900);
}

TEST(StepTimes, FollowsAMachineThatSlowsDown) {
  StepTimes times;
  for (int i = 0; i < 200; ++i) times.Add(16, i % 2 * 64, Seconds(16, i % 2 * 64));
  for (int i = 0; i < 200; ++i) times.Add(16, i % 2 * 64, 3 * Seconds(16, i % 2 * 64));
  EXPECT_NEAR(times.Expect(16, 64), 3 * Seconds(16, 64), 1.5 * Seconds(16, 64));
}

}  // namespace
}  // namespace dsv4::server
