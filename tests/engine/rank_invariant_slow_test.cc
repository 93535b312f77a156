// --rank-invariant on every fixture that ranks can divide: 1, 2, 4 and 8 ranks give the same bits.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dsv4/sampling.h"
#include "engine/rank_invariant.h"
#include "support/agreement.h"
#include "support/fixture.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

struct InvariantCase {
  const char* fixture;
  std::vector<int> ranks;  // numbers of ranks that can divide it
};
class RankInvariant : public testing::TestWithParam<InvariantCase> {};
INSTANTIATE_TEST_SUITE_P(All, RankInvariant,
                         testing::Values(InvariantCase{"mini-bf16", {1, 2}}, InvariantCase{"flash-nvfp4", {1, 2}},
                                         InvariantCase{"flash-all-nvfp4", {1, 2}}, InvariantCase{"flash-mtp", {1, 2}},
                                         InvariantCase{"flash-dspark", {1, 2}},
                                         InvariantCase{"pro-official", {1, 2, 4}},
                                         InvariantCase{"flash-8-groups", {1, 2, 4, 8}}),
                         [](const auto& instance) {
                           std::string name = instance.param.fixture;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

// A prompt, whole and in chunks, which ranks divide by tokens; after token 130 token by token, divided by heads.
TEST_P(RankInvariant, LogitsHaveTheSameBitsAndMatchTheReference) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam().fixture);
  const std::vector<TokenId> ids = ReferenceArray(dir, "prompt_ids").i32;
  const std::vector<float> reference = ReferenceArray(dir, "logits").f32;
  const size_t first = std::min<size_t>(130, ids.size() - 10);
  std::vector<float> prompt, decoded;
  for (const int ranks : GetParam().ranks) {
    const auto engine = LoadOrFail(Invariant(ExactOptions(dir), ranks));
    ASSERT_NE(engine, nullptr);
    const std::vector<float> got = AllLogits(*engine, ids), got_decoded = AllLogits(*engine, ids, first);
    if (prompt.empty()) {
      prompt = got, decoded = got_decoded;
      EXPECT_LE(LargestDifference(prompt, reference), 2e-3f);  // docs/dev/numerics.md
      EXPECT_LE(LargestDifference(decoded, reference), 2e-3f);
    }
    EXPECT_TRUE(got == prompt) << ranks << " ranks";
    EXPECT_TRUE(got_decoded == decoded) << ranks << " ranks, token by token";
  }
  EngineOptions chunked = Invariant(ExactOptions(dir), GetParam().ranks.back());
  chunked.prefill_chunk = 37;
  const auto in_chunks = LoadOrFail(chunked);
  ASSERT_NE(in_chunks, nullptr);
  EXPECT_TRUE(AllLogits(*in_chunks, ids) == prompt);
}

// Drafts of the model's module, whose layers also have slices.
class RankInvariantDrafts : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, RankInvariantDrafts, testing::Values("flash-mtp", "flash-dspark"));

TEST_P(RankInvariantDrafts, TextIsTheSame) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const std::vector<TokenId> ids = ReferenceArray(dir, "prompt_ids").i32;
  std::vector<std::vector<TokenId>> texts;
  for (const Speculate drafts : {Speculate::kOff, Speculate::kAuto}) {
    for (const int ranks : {1, 2}) {
      EngineOptions options = Invariant(ExactOptions(dir), ranks);
      options.drafts.speculate = drafts;
      const auto engine = LoadOrFail(options);
      ASSERT_NE(engine, nullptr);
      const auto session = std::move(engine->NewSession()).value();
      const auto sampler = std::move(Sampler::Create({.temperature = 0}, engine->info().vocab_size)).value();
      ASSERT_TRUE(session->Append(ids, LogitRows::kNone, nullptr).ok());
      const DecodeItem item{.session = session.get(), .sampler = sampler.get(), .first = 17, .max_tokens = 16};
      texts.emplace_back();
      ASSERT_TRUE(
          engine->Decode({&item, 1}, [&](size_t, const SampledToken& t) { return texts.back().push_back(t.id), true; })
              .ok());
    }
  }
  EXPECT_EQ(texts[0].size(), 16u);
  for (const auto& text : texts) EXPECT_EQ(text, texts[0]);
}

// Modes that round the inputs of divided products: each slice has the scales of its columns.
TEST(RankInvariantModes, HoldsForRoundedActivations) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-8-groups");
  for (const ActivationDtype mode : {ActivationDtype::kFp8, ActivationDtype::kNvfp4, ActivationDtype::kInt8}) {
    std::vector<std::vector<float>> logits;
    for (const int ranks : {1, 2, 8}) {
      EngineOptions options = Invariant({.model_dir = dir}, ranks);
      options.activation_dtype = mode;
      const auto engine = LoadOrFail(options);
      ASSERT_NE(engine, nullptr);
      // Divided by tokens, with shares of odd sizes; then decode rows.
      logits.push_back(AllLogits(*engine, SomeTokens(141, 3, engine->info().vocab_size), 135));
    }
    EXPECT_FALSE(logits[0].empty());
    EXPECT_TRUE(logits[0] == logits[1] && logits[0] == logits[2]) << static_cast<int>(mode);
  }
}

}  // namespace
}  // namespace dsv4::test
