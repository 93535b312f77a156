// The model of step times: budgets and limits that follow from timed passes.
#include "server/schedule/step_times.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace dsv4::server {
namespace {

constexpr auto kLongOnes = PromptRegime::kLong, kShortOnes = PromptRegime::kShort;
constexpr int64_t kStepRows = 64, kStepTokens = 4032, kLeastTokens = 16;
constexpr double kRowSeconds = 0.033;

StepShape ShapeOf(int64_t rows, PromptRegime regime, int64_t tokens, int64_t sequences = 1) {
  StepShape step{.rows = rows};
  step.of(regime) = {tokens, sequences};
  return step;
}

double PassSeconds(int64_t tokens) { return 0.11 + 5e-5 * static_cast<double>(tokens); }

// The most tokens of prompts that fit, but at least kLeastTokens: what the scheduler asks of the model.
int64_t BudgetOf(const StepTimes& times, double bound, int64_t rows = kStepRows, PromptRegime regime = kLongOnes,
                 int64_t limit = kStepTokens) {
  int64_t low = 0, high = limit;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    const StepShape step = ShapeOf(rows, regime, middle);
    times.MayTry(step) && times.Fits(step, bound) ? low = middle : high = middle - 1;
  }
  return std::max(low, kLeastTokens);
}

// A machine on which 64 rows take 33 ms, and a prompt pass 110 ms and 0.05 ms for each token. 2,140 tokens fit into
// 250 ms.
class TimedMachine {
 public:
  explicit TimedMachine(double bound = 0.25, int between = 0) : bound_(bound), between_(between) {}

  void TimeAtStart(double factor) {
    times.Add({.rows = 1}, 0.003 * factor);
    for (int twice = 0; twice < 2; ++twice) {
      times.Add({.rows = kStepRows}, kRowSeconds * factor);
      for (const int64_t tokens : {512, 2048}) times.Add(ShapeOf(0, kLongOnes, tokens), PassSeconds(tokens) * factor);
    }
  }
  // Runs steps with prompts, as large as the model allows. Returns how many took longer than the bound.
  int Run(
      int steps, const std::function<double(int)>& factor = [](int) { return 1.0; }) {
    int late = 0;
    for (int i = 0; i < steps; ++i) {
      for (int k = 0; k < between_; ++k) times.Add({.rows = kStepRows}, kRowSeconds * factor(i));
      const int64_t tokens = BudgetOf(times, bound_);
      const double seconds = (kRowSeconds + PassSeconds(tokens)) * factor(i);
      late += seconds > bound_ * 1.01 ? 1 : 0;
      times.Add(ShapeOf(kStepRows, kLongOnes, tokens), seconds);
    }
    return late;
  }
  int64_t budget() const { return BudgetOf(times, bound_); }

  StepTimes times;

 private:
  double bound_;
  int between_;
};

class StepTimesStarts : public ::testing::TestWithParam<int> {};  // steps without prompts between two with prompts

TEST_P(StepTimesStarts, RightTimesGiveTheRightBudgetAtOnce) {
  TimedMachine machine(0.25, GetParam());
  machine.TimeAtStart(1);
  EXPECT_NEAR(static_cast<double>(machine.budget()), 1685, 30);  // a tenth is kept while the spread is unknown
  EXPECT_EQ(machine.Run(10), 0);
  EXPECT_NEAR(static_cast<double>(machine.budget()), 2140, 0.05 * 2140);
  EXPECT_EQ(machine.Run(200), 0);
  EXPECT_NEAR(static_cast<double>(machine.budget()), 2140, 0.01 * 2140);
}

TEST_P(StepTimesStarts, NothingIsKnownAtFirst) {
  TimedMachine machine(0.25, GetParam());
  EXPECT_EQ(machine.budget(), 256);
  EXPECT_EQ(machine.Run(60), 0);
  EXPECT_NEAR(static_cast<double>(machine.budget()), 2140, 0.05 * 2140);
}

TEST_P(StepTimesStarts, TimesThatWereFourTimesTooLarge) {
  TimedMachine machine(0.25, GetParam());
  machine.TimeAtStart(4);
  EXPECT_EQ(machine.budget(), kLeastTokens);
  EXPECT_EQ(machine.Run(20), 0);
  EXPECT_GT(machine.budget(), 1000);
  machine.Run(40);
  EXPECT_NEAR(static_cast<double>(machine.budget()), 2140, 0.15 * 2140);
}

TEST_P(StepTimesStarts, TimesThatWereFourTimesTooSmall) {
  TimedMachine machine(0.25, GetParam());
  machine.TimeAtStart(0.25);
  EXPECT_LE(machine.Run(60), 5);
  EXPECT_NEAR(static_cast<double>(machine.budget()), 2140, 0.15 * 2140);
}

// The bound holds at three times the time, with fewer tokens.
TEST_P(StepTimesStarts, AMachineThatSlowsDownAndRecovers) {
  TimedMachine machine(0.6, GetParam());
  machine.TimeAtStart(1);
  machine.Run(100);
  const int64_t before = machine.budget();
  EXPECT_EQ(before, kStepTokens);
  EXPECT_LE(machine.Run(100, [](int) { return 3.0; }), 5);
  const int64_t slow = machine.budget();
  EXPECT_NEAR(static_cast<double>(slow), 1140, 0.05 * 1140);
  machine.Run(15);
  EXPECT_GE(machine.budget(), before / 2);
}

TEST_P(StepTimesStarts, OneStepOfTwoSecondsHasNoLastingEffect) {
  TimedMachine machine(0.25, GetParam());
  machine.TimeAtStart(1);
  machine.Run(50);
  const int64_t before = machine.budget();
  machine.times.Add(ShapeOf(kStepRows, kLongOnes, before), 2.0);
  machine.Run(1);
  EXPECT_NEAR(static_cast<double>(machine.budget()), static_cast<double>(before), 0.02 * static_cast<double>(before));
  machine.times.Add({.rows = kStepRows}, 2.0);
  EXPECT_NEAR(static_cast<double>(machine.budget()), static_cast<double>(before), 0.02 * static_cast<double>(before));
}

// Passes that are late now and then, because another program runs.
TEST_P(StepTimesStarts, EveryTwelfthPassIsLate) {
  TimedMachine machine(0.25, GetParam());
  machine.TimeAtStart(1);
  machine.Run(600, [](int i) { return i % 12 == 11 ? 1.6 : 1.0; });
  machine.Run(1);
  EXPECT_NEAR(static_cast<double>(machine.budget()), 2140, 0.05 * 2140);
}

INSTANTIATE_TEST_SUITE_P(Between, StepTimesStarts, ::testing::Values(0, 1, 10));

TEST(StepTimes, KeepsADistanceWhereTimesScatter) {
  std::mt19937 random(2);
  std::normal_distribution<double> spread(0, 0.08);
  TimedMachine machine;
  machine.TimeAtStart(1);
  int late = 0;
  for (int i = 0; i < 600; ++i) {
    const int64_t tokens = machine.budget();
    const double seconds = (kRowSeconds + PassSeconds(tokens)) * (1 + std::abs(spread(random)));
    late += seconds > 0.25 ? 1 : 0;
    machine.times.Add(ShapeOf(kStepRows, kLongOnes, tokens), seconds);
  }
  EXPECT_LT(late, 150);  // of 600; about one in eight
  EXPECT_LT(machine.budget(), 2000);
  EXPECT_GT(machine.budget(), 1000);
}

// Rows are concave, as with experts. Limits and budgets follow the table, not a line through it.
TEST(StepTimes, RowsAreATable) {
  const auto seconds = [](int64_t rows) { return 0.004 * std::sqrt(static_cast<double>(rows)); };
  StepTimes times;
  EXPECT_EQ(times.Sequences(0.01, 64), 64);  // nothing was timed
  for (int i = 0; i < 200; ++i) {
    const int64_t rows = int64_t{1} << (i % 8);
    times.Add({.rows = rows}, seconds(rows));
  }
  for (const int64_t rows : {1, 8, 48, 128})
    EXPECT_NEAR(times.Guess({.rows = rows}), seconds(rows), 0.1 * seconds(rows));
  const int64_t limit = times.Sequences(0.025, 128);
  EXPECT_GE(limit, 34);
  EXPECT_LE(limit, 40);
  EXPECT_EQ(times.Sequences(0.001, 64), 64);  // one sequence alone is too slow: no limit would help
  EXPECT_EQ(times.Sequences(10, 128), 128);
}

// Admission asks the rows alone, whatever prompts take.
TEST(StepTimes, PromptsDoNotLowerTheLimit) {
  StepTimes times;
  for (int i = 0; i < 20; ++i) times.Add({.rows = kStepRows}, kRowSeconds);
  const int64_t before = times.Sequences(0.25, 128);
  EXPECT_EQ(before, 128);
  std::mt19937 random(3);
  for (int i = 0; i < 500; ++i) {
    const auto tokens = static_cast<int64_t>(random() % 4000) + 1;
    times.Add(ShapeOf(kStepRows, i % 3 == 0 ? kShortOnes : kLongOnes, tokens),
              0.1 + static_cast<double>(random() % 1000) / 100);
    ASSERT_EQ(times.Sequences(0.25, 128), before);
  }
}

TEST(StepTimes, EachFurtherSequenceTakesTime) {
  const auto seconds = [](int64_t tokens, int64_t sequences) {
    return PassSeconds(tokens) + 0.007 * static_cast<double>(sequences - 1);
  };
  StepTimes times;
  std::mt19937 random(4);
  for (int i = 0; i < 400; ++i) {
    const auto tokens = static_cast<int64_t>(random() % 3000) + 500, sequences = static_cast<int64_t>(random() % 8) + 1;
    times.Add(ShapeOf(0, kLongOnes, tokens, sequences), seconds(tokens, sequences));
  }
  EXPECT_NEAR(times.Guess(ShapeOf(0, kLongOnes, 2000, 1)), seconds(2000, 1), 0.02 * seconds(2000, 1));
  EXPECT_NEAR(times.Guess(ShapeOf(0, kLongOnes, 2000, 8)), seconds(2000, 8), 0.02 * seconds(2000, 8));
}

// Rows of short prompts cost twice as much here. Each regime has its own budget, also if nearly every step has both.
TEST(StepTimes, RegimesAreApart) {
  StepTimes times;
  const auto seconds = [](const StepShape& s) {
    return kRowSeconds + (s.of(kLongOnes).tokens > 0 ? 0.02 + 5e-5 * static_cast<double>(s.of(kLongOnes).tokens) : 0) +
           (s.of(kShortOnes).tokens > 0 ? 0.02 + 1e-4 * static_cast<double>(s.of(kShortOnes).tokens) : 0);
  };
  times.Add({.rows = kStepRows}, kRowSeconds);
  const auto add = [&](const StepShape& step, double factor) { times.Add(step, factor * seconds(step)); };
  for (int i = 0; i < 100; ++i) {
    for (const int64_t tokens : {300, 700, 1500}) {
      add(ShapeOf(kStepRows, kLongOnes, tokens), 1);
      add(ShapeOf(kStepRows, kShortOnes, tokens), 1);
    }
  }
  EXPECT_NEAR(static_cast<double>(BudgetOf(times, 0.12, kStepRows, kLongOnes)), 1340, 140);
  EXPECT_NEAR(static_cast<double>(BudgetOf(times, 0.12, kStepRows, kShortOnes)), 670, 70);
  StepShape both = ShapeOf(kStepRows, kLongOnes, 700);
  both.of(kShortOnes) = {300, 1};
  EXPECT_NEAR(times.Guess(both), seconds(both), 0.03 * seconds(both));
  // The machine slows down. Only such steps come.
  for (int i = 0; i < 20; ++i) add(both, 3);
  EXPECT_NEAR(times.Guess(both), 3 * seconds(both), 0.6 * seconds(both));
}

// A regime without times begins with the times of the other one.
TEST(StepTimes, AnUnknownRegimeIsTriedCarefully) {
  StepTimes times;
  times.Add({.rows = kStepRows}, kRowSeconds);
  EXPECT_EQ(BudgetOf(times, 0.25, kStepRows, kShortOnes), 256);
  for (int i = 0; i < 40; ++i) times.Add(ShapeOf(0, kLongOnes, 2000), 1.0);
  EXPECT_EQ(BudgetOf(times, 0.25, kStepRows, kShortOnes), kLeastTokens);
  EXPECT_EQ(BudgetOf(times, 10, kStepRows, kShortOnes), 256);
  times.Add(ShapeOf(0, kShortOnes, 256), 0.02);
  EXPECT_EQ(BudgetOf(times, 10, kStepRows, kShortOnes), 512);
  times.Add(ShapeOf(0, kShortOnes, 512), 0.03);
  EXPECT_EQ(BudgetOf(times, 10, kStepRows, kShortOnes), 1024);
}

TEST(StepTimes, StrangeValues) {
  StepTimes times;
  EXPECT_EQ(times.Guess({}), 0);
  EXPECT_EQ(times.Guess({.rows = 5000}), 0);
  for (const double seconds : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    times.Add({.rows = 4}, seconds);
    times.Add(ShapeOf(4, kLongOnes, 100), seconds);
  }
  times.Add({}, 0.1);
  EXPECT_EQ(times.Guess({.rows = 4}), 0);
  std::mt19937_64 random(5);
  for (int i = 0; i < 20000; ++i) {
    const auto pick = [&](std::initializer_list<int64_t> of) { return of.begin()[random() % of.size()]; };
    StepShape step{.rows = pick({0, 1, 2, 127, 128, 129, 4096, 100000})};
    step.of(kLongOnes) = {pick({0, 0, 1, 16, 8192, 1000000}), pick({1, 8, 128})};
    step.of(kShortOnes) = {pick({0, 0, 1, 500, 4096}), pick({1, 8, 128})};
    times.Add(step, std::pow(10, static_cast<double>(random() % 9) - 6));
    const double guess = times.Guess(step);
    ASSERT_TRUE(std::isfinite(guess) && guess >= 0) << i;
    ASSERT_GE(times.Distance(step), 1);
    ASSERT_LE(times.Distance(step), 1.5);
    for (const double bound : {0.0, 1e-3, 10.0}) {
      const int64_t sequences = times.Sequences(bound, 128), budget = BudgetOf(times, bound);
      ASSERT_TRUE(sequences >= 1 && sequences <= 128);
      ASSERT_TRUE(budget >= kLeastTokens && budget <= kStepTokens);
    }
  }
}

// steps_h200.txt: steps of a server under load, recorded on a GPU.
TEST(StepTimes, KnowsTheStepsOfAServerUnderLoad) {
  std::ifstream file("tests/server/schedule/data/steps_h200.txt");
  ASSERT_TRUE(file.is_open());
  StepTimes times;
  std::vector<double> errors;
  // Least squares of the passes with prompts and most rows: seconds by tokens.
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    StepShape step;
    double ms = 0;
    std::istringstream fields(line);
    auto& prompts = step.of(kLongOnes);
    ASSERT_TRUE(fields >> step.rows >> prompts.tokens >> prompts.sequences >> ms) << line;
    if (const double guess = times.Guess(step); guess > 0) errors.push_back(std::abs(ms / 1e3 / guess - 1));
    times.Add(step, ms / 1e3);
    if (step.rows < kStepRows - 4 || prompts.tokens == 0) continue;
    const auto tokens = static_cast<double>(prompts.tokens);
    n += 1, x += tokens, y += ms / 1e3, xx += tokens * tokens, xy += tokens * ms / 1e3;
  }
  ASSERT_GT(errors.size(), 600u);
  errors.erase(errors.begin(), errors.begin() + 100);
  std::sort(errors.begin(), errors.end());
  EXPECT_LT(errors[errors.size() / 2], 0.05);
  EXPECT_LT(errors[errors.size() * 9 / 10], 0.15);
  const double slope = (n * xy - x * y) / (n * xx - x * x), base = (y - slope * x) / n;
  const double bound = 0.25 / times.Distance(ShapeOf(kStepRows, kLongOnes, 2048));
  EXPECT_NEAR(static_cast<double>(BudgetOf(times, 0.25)) * slope / (bound - base), 1, 0.15);
}

}  // namespace
}  // namespace dsv4::server
