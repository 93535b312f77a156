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
  return tokens / policy.Expect(rows);
}

TEST(DraftPolicy, TakesWhatMakesTheMostTokensASecond) {
  test::Random random(3);
  for (int round = 0; round < 300; ++round) {
    DraftPolicy policy(-1);
    double seconds = 1;
    for (int64_t rows = 1; rows <= 16; ++rows)
      policy.AddStep(rows, seconds += random.Chance(0.5) ? 0 : random.Uniform(0, 0.6));
    std::vector<std::vector<float>> confidences(1 + static_cast<size_t>(random.Index(3)));
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

// A step of two rows takes 1.6 times one of one: drafts that are never right cost little, as they are hardly ever
// tried.
TEST(DraftPolicy, LosesLittleWhereDraftsAreNeverRight) {
  DraftPolicy policy(-1);
  policy.AddStep(1, 1.0);
  double with = 0, accepted = 1.2, tried = 2;
  for (int step = 0; step < 400; ++step) {
    std::vector<Draft> drafts = DraftsOf({std::vector<float>(5, static_cast<float>(accepted / tried))});
    policy.Cut(drafts, 64);
    const auto rows = 1 + static_cast<int64_t>(drafts[0].tokens.size());
    const double seconds = rows == 1 ? 1.0 : 1.0 + 0.6 * static_cast<double>(rows - 1);
    policy.AddStep(rows, seconds);
    if (rows > 1) accepted *= 0.98, tried = 0.98 * tried + 1;
    if (step >= 200) with += seconds;
  }
  EXPECT_LT(with, 200 * 1.03);
}

TEST(DraftPolicy, KeepsToTheRowsThatThereAre) {
  for (const float threshold : {-1.0f, 0.0f}) {
    DraftPolicy policy(threshold);
    policy.AddStep(1, 1.0), policy.AddStep(64, 1.0);
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
  EXPECT_EQ(policy.Expect(3), 0);
  std::vector<Draft> drafts = DraftsOf({{0.9f}});
  policy.Cut(drafts, 64);
  EXPECT_TRUE(drafts[0].tokens.empty());
}

}  // namespace
}  // namespace dsv4
