#include "engine/drafts/draft_policy.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/random.h"

namespace dsv4 {
namespace {

std::vector<Draft> DraftsOf(const std::vector<std::vector<float>>& confidences) {
  std::vector<Draft> drafts(confidences.size());
  for (size_t i = 0; i < drafts.size(); ++i) {
    drafts[i].confidence = confidences[i];
    drafts[i].tokens.assign(confidences[i].size(), 7);
  }
  return drafts;
}

// The expected tokens per second with drafts of these lengths.
double RateOf(const DraftPolicy& policy, const std::vector<Draft>& whole, const std::vector<size_t>& lengths) {
  double tokens = 0;
  int64_t rows = 0;
  for (size_t d = 0; d < whole.size(); ++d) {
    double survival = 1;
    tokens += 1;
    for (size_t i = 0; i < lengths[d]; ++i) tokens += survival *= static_cast<double>(whole[d].confidence[i]);
    rows += 1 + static_cast<int64_t>(lengths[d]);
  }
  return tokens / policy.Expect(rows, static_cast<int64_t>(whole.size()));
}

TEST(DraftPolicy, TakesWhatMakesTheMostTokensASecond) {
  test::Random random(3);
  for (int round = 0; round < 300; ++round) {
    DraftPolicy policy(-1);
    std::vector<std::vector<float>> confidences(1 + static_cast<size_t>(random.Index(3)));
    const auto sequences = static_cast<int64_t>(confidences.size());
    double seconds = 1;
    for (int64_t rows = sequences; rows <= 16; ++rows)
      policy.AddStep(rows, sequences, seconds += random.Chance(0.5) ? 0 : random.Uniform(0, 0.6));
    for (int64_t i = 0; i < 40; ++i) policy.AddGain(sequences, 1, 0);  // no trial
    for (auto& c : confidences) {
      for (int64_t n = random.Index(4); n > 0; --n) c.push_back(static_cast<float>(random.Uniform(0, 1)));
    }
    const std::vector<Draft> whole = DraftsOf(confidences);
    std::vector<Draft> cut = whole;
    policy.Cut(cut, 16);
    double best = 0;
    std::vector<size_t> lengths(whole.size());
    for (;;) {  // all lengths
      best = std::max(best, RateOf(policy, whole, lengths));
      size_t d = 0;
      while (d < lengths.size() && lengths[d] == whole[d].tokens.size()) lengths[d++] = 0;
      if (d == lengths.size()) break;
      ++lengths[d];
    }
    for (size_t d = 0; d < cut.size(); ++d) lengths[d] = cut[d].tokens.size();
    EXPECT_NEAR(RateOf(policy, whole, lengths), best, 1e-6 * best);
  }
}

// The time of a step that verifies 0, 1, .. drafts, and the time to make the drafts, both in steps without drafts.
// Flash: 34 layers and MTP on an H200 at batch 1 (docs/speculation.md). The others: launches and waits of a small model
// on a GPU, and a CPU, where each row costs the same.
struct Costs {
  const char* name;
  std::vector<double> step;
  double draft;
  bool says;         // the drafter has a confidence, which is right on average
  double place = 0;  // not 0: drafts are shortened before they are made, and making takes this long per token
};
const Costs kFlash{"Flash", {1, 1.55, 1.82, 2.14, 2.59, 2.80}, 0.14, false};
const Costs kFlashBlock{"Flash, a block", {1, 1.55, 1.82, 2.14, 2.59, 2.80}, 0.33, true};
const Costs kFlashForeseen{"Flash, foreseen", {1, 1.40, 1.67, 1.97, 2.4, 2.76}, 0.33, false, 0.065};
const Costs kSmall{"small", {1, 1.35, 1.5, 1.65}, 0.55, false};
const Costs kSmallBlock{"small, a block", {1, 1.35, 1.5, 1.65, 1.8, 1.95}, 0.8, true};
const Costs kCpu{"CPU", {1, 1.7, 2.4, 3.1}, 0.3, false};

// Texts whose drafts are right with these probabilities, by position; one after the other with one policy.
class Simulation {
 public:
  Simulation(const Costs& costs, std::vector<double> right, uint64_t seed)
      : costs_(costs), right_(std::move(right)), random_(seed) {
    right_.resize(std::min(right_.size(), costs.step.size() - 1));
    policy_.AddStep(1, 1, 1.0);
    if (costs.place > 0) policy_.AddDrafting(Making::kEach, 1, costs.place);
  }

  // The seconds for a text that takes `tokens` without drafts.
  double Text(int64_t tokens) {
    double seconds = 0;
    while (tokens > 0) {
      const auto [accepted, took] = Step();
      tokens -= 1 + accepted;
      seconds += took;
    }
    return seconds;
  }
  // The same with all drafts verified.
  double Whole(int64_t tokens) {
    double seconds = 0;
    while (tokens > 0) {
      tokens -= 1 + Right(Chances());
      seconds += costs_.draft + costs_.step.back();
    }
    return seconds;
  }

 private:
  // The probabilities of the next draft's positions, as a drafter with a confidence knows them: half of the text is
  // easier.
  std::vector<double> Chances() {
    std::vector<double> chances = right_;
    const double ease = !costs_.says ? 1 : random_.Chance(0.5) ? 1.25 : 0.75;
    for (double& chance : chances) chance = std::min(0.99, chance * ease);
    return chances;
  }
  int64_t Right(const std::vector<double>& chances) {
    int64_t right = 0;
    for (const double chance : chances) {
      if (!random_.Chance(chance)) break;
      ++right;
    }
    return right;
  }
  double Noise() { return random_.Uniform(0.97, 1.03); }

  // Accepted drafts and seconds.
  std::pair<int64_t, double> Step() {
    std::vector<Draft> drafts = DraftsOf({{}});
    const std::vector<double> chances = Chances();
    double took = 0;
    const bool wants = policy_.Wants(1);
    if (wants) {
      std::vector<float> confidence;
      for (size_t i = 0; i < chances.size(); ++i)
        confidence.push_back(static_cast<float>(costs_.says ? std::max(chances[i], 0.3) : seen_[i]));
      drafts = DraftsOf({confidence});
      policy_.Cut(drafts, 64, costs_.place == 0 ? Making::kDone : Making::kEach);
      took = (costs_.place > 0 ? costs_.place * static_cast<double>(drafts[0].tokens.size()) : costs_.draft) * Noise();
    }
    const auto drafted = static_cast<int64_t>(drafts[0].tokens.size());
    const double verified = costs_.step[static_cast<size_t>(drafted)] * Noise();
    const int64_t accepted = std::min(drafted, Right(chances));
    policy_.AddStep(1 + drafted, 1, verified);
    if (drafted > 0) {
      policy_.Observe(drafts[0], accepted, /*foreseen=*/costs_.place > 0);
      for (int64_t i = 0; i < std::min(drafted, accepted + 1); ++i) {
        double& share = seen_[static_cast<size_t>(i)];
        share += ((i < accepted ? 1 : 0) - share) / std::min(32, 4 + ++tried_[static_cast<size_t>(i)]);
      }
    }
    if (wants && drafted == 0 && costs_.place > 0) {
      policy_.AddGain(1, 0, policy_.Drafting(Making::kEach, 1));
    } else if (wants) {
      policy_.AddGain(1, accepted, took + verified - policy_.Expect(1, 1));
    }
    return {accepted, took + verified};
  }

  const Costs& costs_;
  std::vector<double> right_;
  test::Random random_;
  DraftPolicy policy_{-1};
  // Accepted shares by position, as in ModelDrafter.
  std::array<double, kMaxDraftTokens> seen_ = {0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7};
  std::array<int, kMaxDraftTokens> tried_ = {};
};

// How many times longer than without drafts: the mean over many engines, of their first text and of thirty texts.
struct Ratio {
  double first = 0, all = 0, whole = 0;
};
Ratio Simulate(const Costs& costs, const std::vector<double>& right, int64_t tokens) {
  constexpr int kEngines = 40, kTexts = 20;
  Ratio sum;
  for (int engine = 0; engine < kEngines; ++engine) {
    Simulation simulation(costs, right, static_cast<uint64_t>(engine) + 1);
    for (int text = 0; text < kTexts; ++text) {
      const double took = simulation.Text(tokens);
      if (text == 0) sum.first += took / static_cast<double>(tokens * kEngines);
      sum.all += took / static_cast<double>(tokens * kEngines * kTexts);
    }
    sum.whole += simulation.Whole(tokens) / static_cast<double>(tokens * kEngines);
  }
  return sum;
}

// Also for a text of 130 tokens that is an engine's first.
TEST(DraftPolicy, LosesLittleWhereDraftsAreWrong) {
  for (const Costs* costs : {&kFlash, &kFlashBlock, &kFlashForeseen, &kSmall, &kSmallBlock, &kCpu}) {
    for (const double right : {0.0, 0.3}) {
      for (const int64_t tokens : {130, 400}) {
        const Ratio ratio = Simulate(*costs, std::vector<double>(5, right), tokens);
        EXPECT_LT(ratio.first, 1.02) << costs->name << ", right " << right << ", " << tokens << " tokens";
        EXPECT_LT(ratio.all, 1.01) << costs->name << ", right " << right << ", " << tokens << " tokens";
      }
    }
    // Like prose of the bundled model: drafts pay there, not here.
    EXPECT_LT(Simulate(*costs, {0.6, 0.5, 0.4, 0.3, 0.25}, 130).first, 1.02) << costs->name;
  }
}

TEST(DraftPolicy, KeepsWhatPays) {
  for (const Costs* costs : {&kFlash, &kFlashBlock, &kFlashForeseen, &kSmall, &kSmallBlock}) {
    for (const double right : {0.8, 0.95}) {
      const Ratio ratio = Simulate(*costs, std::vector<double>(5, right), 127);
      EXPECT_LT(ratio.all, 1.04 * ratio.whole) << costs->name << ", right " << right;
      EXPECT_LT(ratio.first, 0.95) << costs->name << ", right " << right;
    }
  }
}

// With known confidence: a token that is worth its row, but not the time to make it, is not made.
TEST(DraftPolicy, CountsTheMakingOfWhatIsNotMade) {
  for (const Making making : {Making::kEach, Making::kDone}) {
    DraftPolicy policy(-1);
    policy.AddStep(1, 1, 1.0), policy.AddStep(2, 1, 1.2), policy.AddStep(3, 1, 1.4);
    policy.AddDrafting(Making::kEach, 3, 0.9);
    EXPECT_DOUBLE_EQ(policy.Drafting(Making::kEach, 2), 0.6);
    std::vector<Draft> drafts = DraftsOf({{0.7f, 0.7f}});
    policy.Cut(drafts, 64, making);
    // 2.19 / 1.4; 1.7 / 1.5 against 2.19 / 2
    EXPECT_EQ(drafts[0].confidence.size(), making == Making::kDone ? 2u : 1u);
  }
}

// A drafter that makes all tokens at once takes as long for two tokens as for five. If drafts do not pay, there is no
// trial: drafts that are made anyway are shortened.
TEST(DraftPolicy, CountsAMakingAtOnceOnce) {
  for (const auto& [seconds, worth] : {std::pair{0.3, 2u}, {0.9, 0u}}) {
    DraftPolicy policy(-1);
    policy.AddStep(1, 1, 1.0), policy.AddStep(2, 1, 1.2), policy.AddStep(3, 1, 1.4);
    policy.AddDrafting(Making::kAtOnce, 5, seconds);
    EXPECT_DOUBLE_EQ(policy.Drafting(Making::kAtOnce, 2), seconds);
    std::vector<Draft> drafts = DraftsOf({{0.7f, 0.7f}});
    policy.Cut(drafts, 64, Making::kAtOnce);
    EXPECT_EQ(drafts[0].confidence.size(), worth);  // 2.19 / 1.7, 2.19 / 2.3
  }
}

// The accuracy of the confidence after making the drafts does not count for the accuracy of the prediction before.
TEST(DraftPolicy, HoldsWhatWasForeseenAgainstItself) {
  DraftPolicy policy(-1);
  policy.AddStep(1, 1, 1.0), policy.AddStep(2, 1, 1.3);
  policy.AddGain(1, 1, 0);  // no trial
  const std::vector<Draft> whole = DraftsOf({{0.9f}});
  for (int i = 0; i < 100; ++i) policy.Observe(whole[0], 0, /*foreseen=*/false);
  for (const Making making : {Making::kDone, Making::kEach}) {
    std::vector<Draft> drafts = whole;
    policy.Cut(drafts, 64, making);
    EXPECT_EQ(drafts[0].confidence.size(), making == Making::kDone ? 0u : 1u);
  }
}

TEST(DraftPolicy, KeepsToTheRowsThatThereAre) {
  for (const float threshold : {-1.0f, 0.0f}) {
    DraftPolicy policy(threshold);
    policy.AddStep(2, 2, 1.0), policy.AddStep(64, 2, 1.0);
    std::vector<Draft> drafts = DraftsOf({{0.9f, 0.9f, 0.9f}, {0.9f, 0.9f, 0.9f}});
    policy.Cut(drafts, 6);
    EXPECT_EQ(drafts[0].tokens.size() + drafts[1].tokens.size(), 4u) << threshold;
    policy.Cut(drafts, 1);  // fewer rows than sequences
    EXPECT_EQ(drafts[0].tokens.size() + drafts[1].tokens.size(), 0u) << threshold;
  }
}

TEST(DraftPolicy, AThresholdEndsADraftInFrontOfTheFirstUnlikelyToken) {
  DraftPolicy policy(0.3f);
  std::vector<Draft> drafts = DraftsOf({{0.5f, 0.31f, 0.2f, 0.9f}, {0.1f}, {}, {0.4f}});
  policy.Cut(drafts, 64);
  std::vector<size_t> lengths;
  for (const Draft& d : drafts) lengths.push_back(d.tokens.size());
  EXPECT_EQ(lengths, (std::vector<size_t>{2, 0, 0, 1}));
}

// Without measurements there is no trial, and no division by zero.
TEST(DraftPolicy, MeasuresBeforeItDrafts) {
  DraftPolicy policy(-1);
  EXPECT_EQ(policy.Expect(3, 1), 0);
  EXPECT_FALSE(policy.Wants(1));
  std::vector<Draft> drafts = DraftsOf({{0.9f}});
  policy.Cut(drafts, 64);
  EXPECT_TRUE(drafts[0].tokens.empty());
}

}  // namespace
}  // namespace dsv4
