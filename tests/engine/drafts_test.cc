// Drafts change nothing: ids, log-probabilities and the KV state are those of a run without.
#include "engine/drafts_fixture.h"

namespace dsv4::test {
namespace {

constexpr Guess kGuesses[] = {Guess::kRight, Guess::kWrong, Guess::kHalf, Guess::kRandom};

class DraftsTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    DSV4_FIXTURE_OR_SKIP(dir, "flash-nvfp4");
    engine_ = LoadOrFail({.model_dir = dir, .device = GetParam(), .num_threads = 1, .draft_threshold = 0});
    ASSERT_NE(engine_, nullptr);
    decode_ = std::make_unique<DraftedDecode>(*engine_);
  }
  std::unique_ptr<Oracle> MakeOracle(Guess guess, const std::vector<DraftOutcome>& plain) {
    return std::make_unique<Oracle>(guess, plain, engine_->info().vocab_size);
  }
  const Oracle& LastOracle() { return dynamic_cast<Oracle&>(*decode_->engine().drafting().drafter); }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<DraftedDecode> decode_;
};
INSTANTIATE_TEST_SUITE_P(Ranks, DraftsTest, testing::Values("cpu", "cpu*2"), [](const auto& instance) {
  return std::string(instance.param) == "cpu" ? "One" : "Two";
});

TEST_P(DraftsTest, ChangeNothingOfABatch) {
  const std::vector<DraftWanted> wanted = EveryOption(1);
  const std::vector<DraftOutcome> plain = decode_->Run(wanted, nullptr, 0);
  for (const Guess guess : kGuesses) {
    const int64_t most = guess == Guess::kHalf ? 7 : guess == Guess::kRight ? 5 : 2;
    EXPECT_EQ(decode_->Differences(wanted, plain, MakeOracle(guess, plain), most), "") << static_cast<int>(guess);
    EXPECT_GT(LastOracle().proposed, 0);
    if (guess == Guess::kRight || guess == Guess::kWrong) {
      EXPECT_EQ(LastOracle().all_accepted, guess == Guess::kRight ? LastOracle().proposed : 0);
    }
  }
  EXPECT_EQ(decode_->Differences(wanted, plain, std::make_unique<LookupDrafter>(), 5), "");
}

// One sequence: a draft of k tokens that are right makes k + 1 tokens a step, the last step's being what is left.
TEST_P(DraftsTest, RightOnesMakeFewerSteps) {
  const std::vector<DraftWanted> wanted = {
      {.prompt = 20, .sampling = {.temperature = 0.9f, .seed = 5}, .max_tokens = 24}};
  const std::vector<DraftOutcome> plain = decode_->Run(wanted, nullptr, 0);
  for (const int64_t most : {1, 3, 7}) {
    const DraftCounts before = engine_->draft_counts();
    EXPECT_EQ(decode_->Differences(wanted, plain, MakeOracle(Guess::kRight, plain), most), "");
    const DraftCounts after = engine_->draft_counts();
    EXPECT_EQ(after.steps - before.steps, (24 + most) / (most + 1)) << most;
    EXPECT_EQ(after.accepted - before.accepted, 24 - (24 + most) / (most + 1)) << most;
  }
}

// Whatever ends a sequence may do so at every place of a draft.
TEST_P(DraftsTest, EndAnywhere) {
  std::vector<DraftWanted> wanted = {{.prompt = 12, .sampling = {.temperature = 1.0f, .seed = 8}, .max_tokens = 12},
                                {.prompt = 9, .sampling = {.temperature = 1.0f, .seed = 9}, .max_tokens = 12}};
  const std::vector<DraftOutcome> all = decode_->Run(wanted, nullptr, 0);
  for (int64_t end = 1; end <= 7; ++end) {
    for (const int way : {0, 1, 2}) {
      std::vector<DraftWanted> cut = wanted;
      if (way == 0) cut[0].max_tokens = end;
      if (way == 1) cut[0].ends_after = end;
      if (way == 2) cut[0].stop_ids = {all[0].ids[static_cast<size_t>(end - 1)]};
      const std::vector<DraftOutcome> plain = decode_->Run(cut, nullptr, 0);
      EXPECT_EQ(decode_->Differences(cut, plain, MakeOracle(Guess::kRight, all), 5), "") << end << ", way " << way;
      EXPECT_EQ(decode_->Differences(cut, plain, MakeOracle(Guess::kHalf, all), 3), "") << end << ", way " << way;
    }
  }
}

// At the context's end drafts become shorter and then none.
TEST(Drafts, StopAtTheContextsEnd) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-nvfp4");
  const auto engine = LoadOrFail({.model_dir = dir, .num_threads = 1, .max_context = 64, .draft_threshold = 0});
  ASSERT_NE(engine, nullptr);
  DraftedDecode decode(*engine);
  for (const int64_t room : {1, 3, 9}) {  // tokens that the session still takes, the first one included
    const std::vector<DraftWanted> wanted = {
        {.prompt = 64 - room, .sampling = {.temperature = 1.0f, .seed = 3}, .max_tokens = room},
        {.prompt = 10, .sampling = {.temperature = 1.0f, .seed = 4}, .max_tokens = 12}};
    const std::vector<DraftOutcome> plain = decode.Run(wanted, nullptr, 0);
    for (const Guess guess : kGuesses) {
      EXPECT_EQ(decode.Differences(wanted, plain, std::make_unique<Oracle>(guess, plain, engine->info().vocab_size), 7),
                "")
          << room;
    }
  }
}

// What is said of each verification: where it was, what it held, and how many were right.
TEST_P(DraftsTest, AreReported) {
  const std::vector<DraftWanted> wanted = {{.prompt = 20, .sampling = {.temperature = 0}, .max_tokens = 20}};
  const std::vector<DraftOutcome> plain = decode_->Run(wanted, nullptr, 0);
  Drafting& drafting = decode_->engine().drafting();
  auto oracle = MakeOracle(Guess::kHalf, plain);
  auto session = std::move(engine_->NewSession()).value();
  const std::vector<TokenId> prompt(plain[0].session.begin(), plain[0].session.begin() + 20);
  ASSERT_TRUE(session->Append(prompt, LogitRows::kNone, nullptr).ok());
  oracle->Watch(session.get(), 0, 20);
  drafting.drafter = std::move(oracle);
  drafting.max_tokens = 3;
  const auto sampler = std::move(Sampler::Create({.temperature = 0}, engine_->info().vocab_size)).value();
  std::vector<TokenId> ids = prompt;
  ids.push_back(prompt[0]);
  int64_t reports = 0;
  const DecodeItem item{.session = session.get(), .sampler = sampler.get(), .first = prompt[0], .max_tokens = 20,
                        .on_verification = [&](const Verification& v) {
                          ++reports;
                          // The step's tokens are there: ids up to position + 2 + accepted.
                          ASSERT_EQ(static_cast<int64_t>(ids.size()),
                                    std::min<int64_t>(v.position + 3 + v.accepted, 41));
                          for (int64_t i = 0; i < v.accepted; ++i) {
                            EXPECT_EQ(v.proposed[static_cast<size_t>(i)], ids[static_cast<size_t>(v.position + 2 + i)]);
                          }
                        }};
  ASSERT_TRUE(
      engine_->Decode({&item, 1}, [&](size_t, const SampledToken& t) { return ids.push_back(t.id), true; }).ok());
  EXPECT_GT(reports, 2);
}

TEST(Drafts, SnapshotsAfterRejectedOnesAreAsWithout) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-nvfp4");
  const auto engine = LoadOrFail({.model_dir = dir, .num_threads = 1, .draft_threshold = 0});
  ASSERT_NE(engine, nullptr);
  Drafting& drafting = dynamic_cast<EngineImpl&>(*engine).drafting();
  const std::vector<TokenId> prompt = SomeTokens(250, 2, 40), tail = SomeTokens(30, 3, 400);
  std::vector<std::vector<float>> rows;
  for (const bool drafts : {false, true}) {
    static const std::vector<DraftOutcome> kNone(1);
    auto oracle = std::make_unique<Oracle>(Guess::kRandom, kNone, engine->info().vocab_size);
    auto session = std::move(engine->NewSession()).value();
    ASSERT_TRUE(session->Append(prompt, LogitRows::kNone, nullptr).ok());
    oracle->Watch(session.get(), 0, prompt.size());
    drafting.drafter = drafts ? std::move(oracle) : nullptr;
    drafting.max_tokens = 7;
    const auto sampler = std::move(Sampler::Create({.temperature = 1, .seed = 4}, engine->info().vocab_size)).value();
    const DecodeItem item{.session = session.get(), .sampler = sampler.get(), .first = 7, .max_tokens = 6};
    ASSERT_TRUE(engine->Decode({&item, 1}, [](size_t, const SampledToken&) { return true; }).ok());
    ASSERT_EQ(session->tokens().size(), 256u);
    const auto snapshot = std::move(session->Snapshot()).value();  // its page is full, and shared
    ASSERT_TRUE(session->Append(SomeTokens(9, 5, 400), LogitRows::kNone, nullptr).ok());
    auto fork = std::move(engine->NewSession(*snapshot)).value();
    rows.emplace_back();
    ASSERT_TRUE(fork->Append(tail, LogitRows::kAll, &rows.back()).ok());
  }
  EXPECT_EQ(rows[0], rows[1]);
}

}  // namespace
}  // namespace dsv4::test
