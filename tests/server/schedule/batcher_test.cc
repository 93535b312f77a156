// Which prompts a step takes, and how many tokens of each.
#include "server/schedule/batcher.h"

#include <numeric>

#include "gtest/gtest.h"

namespace dsv4::server {
namespace {

using Takes = std::vector<int64_t>;

PromptState PromptOf(int64_t unread) {
  return {.unread = unread, .most = unread - 1, .to_end = unread - 1, .regime = RegimeOf(unread - 1)};
}

// 1 ms a row; 20 ms a pass, 0.1 ms a token, and 5 ms each further sequence.
StepTimes KnownTimes() {
  StepTimes times;
  for (int i = 0; i < 40; ++i) {
    for (const int64_t rows : {1, 8, 64}) times.Add({.rows = rows}, 0.001 * static_cast<double>(rows));
    for (const int64_t tokens : {64, 256, 512, 1024, 2048, 4096}) {
      for (const auto regime : {PromptRegime::kShort, PromptRegime::kLong}) {
        for (const int64_t sequences : {1, 4}) {
          StepShape step;
          step.of(regime) = {tokens, sequences};
          times.Add(step, 0.02 + 1e-4 * static_cast<double>(tokens) + 0.005 * static_cast<double>(sequences - 1));
        }
      }
    }
  }
  return times;
}

Takes TakesOf(const std::vector<PromptState>& prompts, const StepLimits& limits, const StepTimes& times = {}) {
  return PlanPrompts(prompts, limits, times).takes;
}

TEST(Batcher, TheFirstPromptGetsAllThatItCanUse) {
  const std::vector<PromptState> prompts = {PromptOf(5000), PromptOf(5000), PromptOf(5000)};
  EXPECT_EQ(TakesOf(prompts, {.tokens = 4096}), (Takes{4096, 0, 0}));
  const std::vector<PromptState> rest = {PromptOf(1000), PromptOf(5000), PromptOf(5000)};
  EXPECT_EQ(TakesOf(rest, {.tokens = 4096}), (Takes{999, 3097, 0}));
  EXPECT_TRUE(TakesOf({}, {.tokens = 4096}).empty());
}

TEST(Batcher, APromptJoinsWithEnoughTokensOrItsWholeRest) {
  const PromptState some = PromptOf(3800), other = PromptOf(5000), tiny = PromptOf(40);
  EXPECT_EQ(TakesOf({some, other, tiny}, {.tokens = 4096}), (Takes{3799, 0, 39}));
  EXPECT_EQ(TakesOf({PromptOf(3500), other, tiny}, {.tokens = 4096}), (Takes{3499, 597, 0}));
  // A quarter of a small step is enough, a half for a pass of another regime.
  EXPECT_EQ(TakesOf({PromptOf(1500), PromptOf(1500)}, {.tokens = 1900}), (Takes{1499, 0}));
  EXPECT_EQ(TakesOf({PromptOf(300), PromptOf(700)}, {.tokens = 512}), (Takes{299, 213}));
  EXPECT_EQ(TakesOf({PromptOf(300), PromptOf(1700)}, {.tokens = 512}), (Takes{299, 0}));
}

TEST(Batcher, StopsAtSnapshots) {
  PromptState first = PromptOf(5000);
  first.most = 100;
  EXPECT_EQ(TakesOf({first, PromptOf(5000)}, {.tokens = 4096}), (Takes{100, 3996}));
  EXPECT_EQ(TakesOf({PromptOf(2000), first}, {.tokens = 4096}), (Takes{1999, 100}));
}

TEST(Batcher, LogitsOfAllRowsHaveTheirOwnRoom) {
  PromptState echo = PromptOf(200);
  echo.all_rows = true;
  EXPECT_EQ(TakesOf({echo, echo, PromptOf(200)}, {.tokens = 4096, .all_rows = 112}), (Takes{112, 0, 199}));
}

TEST(Batcher, KeepsTheBound) {
  const StepTimes times = KnownTimes();
  const std::vector<PromptState> prompts(8, PromptOf(3000));
  const StepLimits limits{.rows = 32, .tokens = 4096, .seconds = 0.2};
  const PromptPlan plan = PlanPrompts(prompts, limits, times);
  // 32 ms and 20 ms are spent: 1,480 tokens are left.
  EXPECT_NEAR(static_cast<double>(plan.takes[0]), 1480, 50);
  EXPECT_EQ(std::accumulate(plan.takes.begin() + 1, plan.takes.end(), int64_t{0}), 0);
  // Several short ones share a pass. Each further one takes 5 ms.
  const std::vector<PromptState> several(8, PromptOf(301));
  const Takes takes = TakesOf(several, limits, times);
  EXPECT_EQ(takes[0], 300);
  EXPECT_EQ(takes[3], 300);
  EXPECT_NEAR(static_cast<double>(std::accumulate(takes.begin(), takes.end(), int64_t{0})), 1300, 100);
  // A prompt of the other regime makes a second pass.
  const Takes mixed = TakesOf({PromptOf(201), PromptOf(5000)}, limits, times);
  EXPECT_EQ(mixed[0], 200);
  EXPECT_NEAR(static_cast<double>(mixed[1]), 1080, 60);
}

// Whatever the bound is, prompts never stand still.
TEST(Batcher, PromptsAlwaysAdvance) {
  const StepTimes times = KnownTimes();
  for (const double seconds : {1e-9, 0.001, 0.03}) {
    const PromptPlan plan = PlanPrompts(std::vector{PromptOf(3000), PromptOf(10)},
                                        {.rows = 64, .tokens = 4096, .seconds = seconds}, times);
    EXPECT_EQ(plan.takes, (Takes{kMinPromptBudget, 0}));
  }
  EXPECT_EQ(TakesOf({PromptOf(3000)}, {.rows = 4, .tokens = 4096, .seconds = 0.25}), (Takes{256}));  // nothing timed
}

TEST(Batcher, ShortPromptsCountAsRows) {
  EXPECT_FALSE(RegimeOf(128));
  EXPECT_EQ(RegimeOf(129), PromptRegime::kShort);
  EXPECT_EQ(RegimeOf(1024), PromptRegime::kShort);
  EXPECT_EQ(RegimeOf(1025), PromptRegime::kLong);
  const StepTimes times = KnownTimes();
  const std::vector<PromptState> prompts(8, PromptOf(31));
  const Takes takes = TakesOf(prompts, {.rows = 8, .tokens = 4096, .seconds = 0.11}, times);
  EXPECT_NEAR(static_cast<double>(std::accumulate(takes.begin(), takes.end(), int64_t{0})), 102, 12);
}

TEST(Batcher, ShortPromptsPassButWaitingCounts) {
  EXPECT_LT(PromptRank(200, 0), PromptRank(5000, 1));
  EXPECT_LT(PromptRank(5000, 2), PromptRank(200, 0));
  EXPECT_LT(PromptRank(100000, 25), PromptRank(200, 0));
}

TEST(Batcher, TheBoundGrowsWhileFirstTokensAreLate) {
  EXPECT_DOUBLE_EQ(StepBound(0.25, 2, 0), 0.25);
  EXPECT_DOUBLE_EQ(StepBound(0.25, 2, 1), 0.25);
  EXPECT_DOUBLE_EQ(StepBound(0.25, 2, 1.5), 0.325);
  EXPECT_DOUBLE_EQ(StepBound(0.25, 2, 2), 0.4);
  EXPECT_DOUBLE_EQ(StepBound(0.25, 2, 1000), 0.4);
  EXPECT_DOUBLE_EQ(StepBound(0.06, 2, 2), 0.11);
  EXPECT_DOUBLE_EQ(StepBound(0.25, 0, 1000), 0.25);
  EXPECT_DOUBLE_EQ(StepBound(0, 2, 1000), 0);
}

}  // namespace
}  // namespace dsv4::server
