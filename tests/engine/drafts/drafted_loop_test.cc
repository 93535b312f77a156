// Rounds with drafts that follow each other without the host, with the CPU as the device. The result equals the tokens
// that the host draws one by one. The cases of all devices (draft_cases.h) also run in these rounds, for up to three
// drafts.
#include "engine/drafts/drafted_loop.h"

#include "engine/drafts/drafts_fixture.h"

namespace dsv4::test {
namespace {

class DraftedLoopTest : public DraftsOfAModel {
 protected:
  // Sequences that can all be in such rounds.
  std::vector<DraftWanted> Alike(uint64_t seed) const {
    std::vector<DraftWanted> all = Options(seed);
    std::erase_if(all, [](const DraftWanted& w) { return w.masked || !w.speculate; });
    return all;
  }
  std::unique_ptr<Oracle> LastOne() {
    return std::unique_ptr<Oracle>(dynamic_cast<Oracle*>(decode_->engine().drafting().drafter.release()));
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, DraftedLoopTest,
                         testing::Values(DraftedModel{"flash-nvfp4", "cpu*2", true},
                                         DraftedModel{"flash-mtp", "cpu", true, Speculate::kMtp},
                                         DraftedModel{"flash-dspark", "cpu", true, Speculate::kDspark},
                                         DraftedModel{"flash-dspark", "cpu*2", true, Speculate::kDspark}),
                         NameOf);

// Every kind of guess, one to three drafts at a time, all options of samplers in a batch.
TEST_P(DraftedLoopTest, ChangesNothing) {
  const std::vector<DraftWanted> all = Alike(3);
  decode_->UseDecode({});
  const std::vector<DraftOutcome> plain = decode_->Run(all, nullptr, 0);
  decode_->UseDecode(AsOnADevice(*engine_));
  for (const auto& [guess, most] :
       {std::pair{Guess::kRight, 1}, {Guess::kWrong, 2}, {Guess::kHalf, 3}, {Guess::kHalf, 2}, {Guess::kRandom, 3}}) {
    EXPECT_EQ(decode_->Differences(all, plain, MakeOracle(guess, plain), most), "")
        << static_cast<int>(guess) << ", " << most;
    const auto oracle = LastOne();
    EXPECT_GT(oracle->verifications, oracle->proposals) << "no round was without the host";
    if (guess == Guess::kRight || guess == Guess::kWrong) {
      EXPECT_EQ(oracle->all_accepted, guess == Guess::kRight ? oracle->proposed : 0);
    }
  }
}

// The host takes part only at the end: when fewer tokens remain than two more rounds may make.
TEST_P(DraftedLoopTest, AsksTheHostInTheEndOnly) {
  const std::vector<DraftWanted> wanted = {
      {.prompt = 20, .sampling = {.temperature = 1, .repeat_penalty = 1.2f, .seed = 6}, .max_tokens = 24}};
  const std::vector<DraftOutcome> plain = decode_->Run(wanted, nullptr, 0);
  EXPECT_EQ(decode_->Differences(wanted, plain, MakeOracle(Guess::kWrong, plain), 3), "");
  auto oracle = LastOne();
  // One token per round. Rounds end when 17 of 24 tokens are drawn, because two rounds of four rows need space. One
  // more round was queued, and the last token has no draft.
  EXPECT_EQ(oracle->proposals, 5);
  EXPECT_EQ(decode_->Differences(wanted, plain, MakeOracle(Guess::kRight, plain), 3), "");
  oracle = LastOne();
  EXPECT_EQ(oracle->proposals, 0);  // six rounds of four
  EXPECT_EQ(oracle->verifications, 6);
}

// A round is queued when a sequence ends, at any position of the round. Its effect must not be visible, also not in a
// following text.
TEST_P(DraftedLoopTest, GoesOnBehindAnEnd) {
  const std::vector<DraftWanted> wanted = {
      {.prompt = 120, .sampling = {.temperature = 1.0f, .seed = 8}, .max_tokens = 40},
      {.prompt = 9, .sampling = {.temperature = 1.0f, .presence_penalty = 0.5f, .seed = 9}, .max_tokens = 40}};
  const std::vector<DraftOutcome> all = decode_->Run(wanted, nullptr, 0);
  for (int64_t end = 5; end <= 8; ++end) {
    std::vector<DraftWanted> cut = wanted;
    if (end % 2 == 0) cut[0].ends_after = end;
    if (end % 2 == 1) cut[0].stop_ids = {all[0].ids[static_cast<size_t>(end - 1)]};
    const std::vector<DraftOutcome> plain = decode_->Run(cut, nullptr, 0);
    const Guess guess = end % 3 == 0 ? Guess::kHalf : Guess::kRight;
    EXPECT_EQ(decode_->Differences(cut, plain, MakeOracle(guess, all), 3), "") << end;
  }
}

// Rings contain the queued rows, so fewer tokens can be removed than without drafts. Removing them gives the same rows.
TEST_P(DraftedLoopTest, TakesBackWhatRingsStillHold) {
  const std::vector<TokenId> prompt = SomeTokens(126, 2, 40), tail = SomeTokens(6, 3, vocab());
  std::vector<TokenId> ids;
  std::vector<std::vector<float>> rows;
  for (const bool drafts : {false, true}) {
    auto session = std::move(engine_->NewSession()).value();
    ASSERT_TRUE(session->Append(prompt, LogitRows::kNone, nullptr).ok());
    const auto sampler = std::move(Sampler::Create({.temperature = 1, .seed = 4}, vocab())).value();
    const std::vector<DraftOutcome> known(1);
    auto oracle = MakeOracle(Guess::kRandom, known);
    oracle->Watch(session.get(), 0, prompt.size());
    const DecodeItem item{.session = session.get(), .sampler = sampler.get(), .first = 7, .max_tokens = 30};
    std::vector<TokenId> got;
    decode_->DecodeWith(drafts ? std::move(oracle) : nullptr, 3, {&item, 1}, [&](size_t, const SampledToken& token) {
      got.push_back(token.id);
      return got.size() < 6;
    });
    if (!drafts) ids = got;
    EXPECT_EQ(got, ids);
    const auto length = static_cast<int64_t>(session->tokens().size());
    ASSERT_EQ(length, 132);
    if (drafts) {
      EXPECT_FALSE(session->Truncate(length - kMaxTruncatedTokens).ok());  // four rows after its end were queued
    }
    ASSERT_TRUE(session->Truncate(length - 4).ok());
    rows.emplace_back();
    ASSERT_TRUE(session->Append(tail, LogitRows::kAll, &rows.back()).ok());
  }
  EXPECT_EQ(rows[0], rows[1]);
}

// A module makes the same drafts with and without the host. More than three drafts need the host.
TEST_P(DraftedLoopTest, ModulesDraftTheSame) {
  if (module_ == nullptr) GTEST_SKIP() << "no module";
  const std::vector<DraftWanted> wanted = {
      {.prompt = 30, .sampling = {.temperature = 0}, .max_tokens = 40},
      {.prompt = 140, .sampling = {.temperature = 0.5f, .seed = 3}, .max_tokens = 40}};
  decode_->UseDecode({});
  const std::vector<DraftOutcome> plain = decode_->Run(wanted, nullptr, 0);
  const Counted& counted = CountModule();
  for (int64_t most = 1; most <= 4; ++most) {
    std::vector<int64_t> accepted;
    for (const bool on_device : {false, true}) {
      decode_->UseDecode(on_device ? AsOnADevice(*engine_) : DecodeFn());
      const int64_t accepted_before = engine_->draft_counts().accepted;
      const int64_t proposals = counted.proposals, verifications = counted.verifications;
      EXPECT_EQ(DifferencesWithModule(wanted, plain, most), "") << on_device << ", " << most;
      accepted.push_back(engine_->draft_counts().accepted - accepted_before);
      const bool ran_ahead = counted.verifications - verifications > 2 * (counted.proposals - proposals);
      EXPECT_EQ(ran_ahead, on_device && most <= 3) << most;
    }
    EXPECT_EQ(accepted[0], accepted[1]) << most;
  }
}

// A sequence may have more rows in a module's pass than in the step.
TEST_P(DraftedLoopTest, KeepsToTheRowsOfAModulesPass) {
  if (module_ == nullptr) GTEST_SKIP() << "no module";
  const Counted& counted = CountModule();
  const int64_t most = DraftedSteps::kMaxRows / std::max<int64_t>(2, decode_->engine().runner().model().draft().rows);
  for (const int64_t sequences : {most, most + 1}) {
    const std::vector<DraftWanted> wanted(static_cast<size_t>(sequences),
                                          {.prompt = 3, .sampling = {.temperature = 0}, .max_tokens = 6});
    const std::vector<DraftOutcome> plain = decode_->Run(wanted, nullptr, 0);
    const int64_t proposals = counted.proposals, verifications = counted.verifications;
    EXPECT_EQ(DifferencesWithModule(wanted, plain, 1), "") << sequences;
    const bool ran_ahead = counted.verifications - verifications > sequences * (counted.proposals - proposals);
    EXPECT_EQ(ran_ahead, sequences == most) << sequences;
  }
}

}  // namespace
}  // namespace dsv4::test
