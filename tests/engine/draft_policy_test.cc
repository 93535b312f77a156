#include "engine/draft_policy.h"

#include <algorithm>
#include <array>

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

// Tokens a second that are expected of drafts of these lengths.
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

// Steps of a drafter that is never right, or always; seconds, after some steps.
struct Simulated {
  bool is_right;
  double draft;       // seconds of making one, of a step without: 1
  double of_a_token;  // that a step takes longer
  double Run(int64_t steps, int64_t from) const {
    DraftPolicy policy(-1);
    policy.AddStep(1, 1, 1.0);
    double seconds = 0, tokens = 0;
    for (int64_t step = 0; step < steps; ++step) {
      if (step == from) seconds = tokens = 0;
      double took = 0;
      std::vector<Draft> drafts = DraftsOf({{}});
      if (policy.Wants(1)) {
        drafts = DraftsOf({std::vector<float>(5, 0.7f)});
        policy.Cut(drafts, 64);
        took += draft;
      }
      const auto drafted = static_cast<int64_t>(drafts[0].tokens.size());
      const double verified = 1 + of_a_token * static_cast<double>(drafted);
      policy.AddStep(1 + drafted, 1, verified);
      const int64_t accepted = is_right ? drafted : 0;
      if (drafted > 0) policy.Observe(drafts[0], accepted);
      if (drafted > 0 || took > 0) policy.AddGain(1, accepted, took + verified - 1);
      seconds += took + verified;
      tokens += static_cast<double>(1 + accepted);
    }
    return seconds / tokens;
  }
};

// A token takes at most 2 % longer than without drafts, from the first on.
TEST(DraftPolicy, LosesLittleWhereDraftsAreNeverRight) {
  for (const double draft : {0.0, 0.1, 0.3}) {
    for (const double of_a_token : {0.05, 0.2, 0.6}) {
      const Simulated never{.is_right = false, .draft = draft, .of_a_token = of_a_token};
      EXPECT_LT(never.Run(400, 0), 1.02) << draft << " " << of_a_token;
      EXPECT_LT(never.Run(4000, 400), 1.01) << draft << " " << of_a_token;
    }
  }
}

TEST(DraftPolicy, KeepsWhatPays) {
  const Simulated always{.is_right = true, .draft = 0.3, .of_a_token = 0.2};
  EXPECT_LT(always.Run(400, 20), (1 + 0.3 + 5 * 0.2) / 6 * 1.02);
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

// Nothing has been measured: nothing is tried, and nothing divides by zero.
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
