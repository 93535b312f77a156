// Batch invariance: the same tokens give the same bits, whatever else is in the batch.

#include <memory>

#include "support/decode_masks.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

// As in training: all roundings are on.
EngineOptions DefaultOptions(const std::string& dir, int threads) {
  EngineOptions options;
  options.model_dir = dir;
  options.num_threads = threads;
  return options;
}

TEST(Batch, EightRaggedSequencesEqualEachAlone) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-nvfp4");
  EngineOptions options = DefaultOptions(dir, 2);
  options.prefill_chunk = 64;  // several passes; sequences leave at different times
  auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  const int64_t v = engine->info().vocab_size;
  const std::vector<int64_t> lengths = {1, 3, 4, 17, 127, 128, 131, 260};
  std::vector<std::vector<TokenId>> prompts;
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::vector<float>> logits(lengths.size());
  std::vector<StepItem> items;
  for (size_t i = 0; i < lengths.size(); ++i) {
    prompts.push_back(SomeTokens(lengths[i], i + 1, v));
    sessions.push_back(std::move(engine->NewSession()).value());
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    items.push_back(
        {.session = sessions[i].get(), .tokens = prompts[i], .rows = LogitRows::kAll, .logits = &logits[i]});
  }
  ASSERT_TRUE(engine->Step(items).ok());
  // Then ten decode steps together, each sequence with its own next tokens.
  for (int step = 0; step < 10; ++step) {
    std::vector<TokenId> next(lengths.size());
    std::vector<std::vector<float>> row(lengths.size());
    items.clear();
    for (size_t i = 0; i < lengths.size(); ++i) {
      next[i] = static_cast<TokenId>((7 * i + 13 * static_cast<size_t>(step)) % static_cast<size_t>(v));
      items.push_back({.session = sessions[i].get(), .tokens = {&next[i], 1}, .logits = &row[i]});
    }
    ASSERT_TRUE(engine->Step(items).ok());
    for (size_t i = 0; i < lengths.size(); ++i) {
      prompts[i].push_back(next[i]);
      logits[i].insert(logits[i].end(), row[i].begin(), row[i].end());
    }
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    EXPECT_EQ(AllLogits(*engine, prompts[i]), logits[i]) << "sequence of " << lengths[i];
    EXPECT_EQ(sessions[i]->tokens(), prompts[i]);
  }
}

TEST(Batch, ThreadCountsGiveTheSameBits) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-nvfp4");
  std::vector<float> expected;
  for (const int threads : {1, 2, 4}) {
    auto engine = LoadOrFail(DefaultOptions(dir, threads));
    ASSERT_NE(engine, nullptr);
    const std::vector<float> logits = AllLogits(*engine, SomeTokens(200, 5, engine->info().vocab_size), 150);
    if (expected.empty()) expected = logits;
    EXPECT_EQ(logits, expected) << threads << " threads";
  }
}

TEST(Batch, DecodeDrawsWhatIsAllowed) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-nvfp4");
  auto engine = LoadOrFail(DefaultOptions(dir, 2));
  ASSERT_NE(engine, nullptr);
  ExpectMaskedDecodeIsStepAndSample(*engine, SomeTokens(60, 8, engine->info().vocab_size));
}

TEST(Batch, AResetSessionIsLikeANewOne) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-nvfp4");
  auto engine = LoadOrFail(DefaultOptions(dir, 2));
  ASSERT_NE(engine, nullptr);
  const int64_t v = engine->info().vocab_size;
  const std::vector<TokenId> first = SomeTokens(300, 1, v), second = SomeTokens(140, 2, v);
  auto session = std::move(engine->NewSession()).value();
  std::vector<float> logits;
  ASSERT_TRUE(session->Append(first, LogitRows::kLast, &logits).ok());
  session->Reset();
  EXPECT_TRUE(session->tokens().empty());
  ASSERT_TRUE(session->Append(second, LogitRows::kAll, &logits).ok());
  EXPECT_EQ(logits, AllLogits(*engine, second));
}

}  // namespace
}  // namespace dsv4::test
