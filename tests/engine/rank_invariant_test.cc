// --rank-invariant: engines with one and with several ranks on one CPU give the same bits, for any contents of a pass.
// The fixtures: rank_invariant_slow_test.cc.
#include "engine/rank_invariant.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "dsv4/inspect.h"
#include "dsv4/sampling.h"
#include "dsv4/snapshot.h"
#include "io/test_files.h"
#include "support/fixture.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

using ::testing::HasSubstr;

EngineOptions InvariantNano(int ranks) {
  return Invariant({.model_dir = std::string(DSV4_SOURCE_DIR) + "/models/nano"}, ranks);
}

// Without the flag the bits differ: the tests above depend on the flag.
TEST(RankInvariantFlag, IsWhatMakesTheBitsEqual) {
  const auto logits = [](int ranks, bool invariant) {
    EngineOptions options = InvariantNano(ranks);
    options.ranks.invariant = invariant;
    return LogitsOfModel(options);
  };
  const std::vector<float> one = logits(1, true);
  EXPECT_FALSE(one.empty());
  EXPECT_TRUE(one == logits(2, true));
  EXPECT_FALSE(logits(1, false) == logits(2, false));
}

// Sequences of several lengths in one step, then text drawn for all of them together.
TEST(RankInvariantFlag, HoldsForBatchesAndDrawnText) {
  std::vector<std::vector<std::vector<float>>> logits;
  std::vector<std::vector<std::vector<TokenId>>> texts;
  for (const int ranks : {1, 2}) {
    const auto engine = LoadOrFail(InvariantNano(ranks));
    ASSERT_NE(engine, nullptr);
    constexpr size_t kSequences = 5;
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<std::unique_ptr<Sampler>> samplers;
    std::vector<std::vector<TokenId>> prompts;
    std::vector<StepItem> items;
    std::vector<DecodeItem> decode;
    logits.emplace_back(kSequences);
    texts.emplace_back(kSequences);
    for (size_t i = 0; i < kSequences; ++i) {
      prompts.push_back(SomeTokens(static_cast<int64_t>(3 + 61 * i), i, 4096));
      sessions.push_back(std::move(engine->NewSession()).value());
      samplers.push_back(std::move(Sampler::Create({.temperature = 0.9f, .seed = i}, 4096)).value());
    }
    for (size_t i = 0; i < kSequences; ++i) {
      items.push_back({.session = sessions[i].get(),
                       .tokens = prompts[i],
                       .rows = LogitRows::kAll,
                       .logits = &logits.back()[i],
                       .prompt_tokens = static_cast<int64_t>(prompts[i].size())});
      decode.push_back({.session = sessions[i].get(), .sampler = samplers[i].get(), .first = 17, .max_tokens = 12});
    }
    ASSERT_TRUE(engine->Step(items).ok());
    ASSERT_TRUE(
        engine->Decode(decode, [&](size_t i, const SampledToken& t) { return texts.back()[i].push_back(t.id), true; })
            .ok());
  }
  EXPECT_TRUE(logits[0] == logits[1]);
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[0][4].size(), 12u);
}

// A file of one number of ranks is valid for every other number, but not for engines without the flag.
TEST(RankInvariantFlag, SnapshotsAreGoodForAnyNumberOfRanks) {
  const auto two = LoadOrFail(InvariantNano(2)), one = LoadOrFail(InvariantNano(1));
  ASSERT_TRUE(one != nullptr && two != nullptr);
  const Continuation c = ExpectSnapshotGoesOn(*two);
  const TempDir dir;
  ASSERT_TRUE(c.snapshot->Save(dir / "cut").ok());
  const auto loaded = one->LoadSnapshot(dir / "cut");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  std::vector<float> got;
  ASSERT_TRUE(std::move(one->NewSession(**loaded)).value()->Append(c.more, LogitRows::kAll, &got).ok());
  EXPECT_TRUE(got == c.logits);

  EngineOptions plain = InvariantNano(1);
  plain.ranks.invariant = false;
  EXPECT_THAT(LoadOrFail(plain)->LoadSnapshot(dir / "cut").status().message(), HasSubstr("rank-invariant"));
}

TEST(RankInvariantFlag, ThePlanNamesTheSlices) {
  const auto plan = [](int ranks, bool invariant) {
    EngineOptions options = InvariantNano(ranks);
    options.ranks.invariant = invariant;
    return std::move(Inspect(options)).value().plan;
  };
  EXPECT_EQ(plan(1, false).slices, 0);
  EXPECT_EQ(plan(1, true).slices, 2);  // nano has 2 groups of heads
  EXPECT_EQ(plan(2, true).slices, 2);
  // Down projections are copied: the same bytes with one rank and with two.
  EXPECT_GT(plan(1, true).widened_bytes, plan(1, false).widened_bytes);
  EXPECT_EQ(plan(1, true).widened_bytes, plan(2, true).widened_bytes);
  EXPECT_GT(plan(1, true).activation_bytes, plan(1, false).activation_bytes);  // partial sums
  const Status four = Engine::Load(InvariantNano(4)).status();
  EXPECT_EQ(four.message(), "o_groups 2: 4 heads in 2 groups cannot be divided among 4 ranks; use 1 or 2");
}

}  // namespace
}  // namespace dsv4::test
