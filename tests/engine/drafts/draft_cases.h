// Drafts change nothing: ids, log-probabilities, sessions and the KV state equal a run without drafts. Every device has
// the same cases: a test program includes this file once and names the models (INSTANTIATE_TEST_SUITE_P).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dsv4/snapshot.h"
#include "engine/drafts/drafts_fixture.h"
#include "io/test_files.h"

namespace dsv4::test {

inline constexpr Guess kGuesses[] = {Guess::kRight, Guess::kWrong, Guess::kHalf, Guess::kRandom};

class DraftCases : public DraftsOfAModel {};

TEST_P(DraftCases, ChangeNothingOfABatch) {
  const std::vector<DraftWanted> wanted = Options(1);
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
  EXPECT_EQ(DifferencesWithModule(wanted, plain, 3), "");
}

// A sequence in a batch equals the sequence alone, so the first sequences of a batch are also the runs of a smaller
// one.
TEST_P(DraftCases, ChangeNothingHoweverLongAndHoweverManyTheyAre) {
  const std::vector<DraftWanted> all = Options(2);
  const std::vector<DraftOutcome> plain = decode_->Run(all, nullptr, 0);
  const size_t every = decode_->engine().runner().on_host() ? 4 : 1;  // the slow tests have the CPU's other cases
  for (size_t batch = 1; batch <= all.size(); batch += every) {
    const auto most = static_cast<int64_t>(1 + 3 * batch % 7);
    const auto end = static_cast<std::ptrdiff_t>(batch);
    const std::vector<DraftWanted> wanted(all.begin(), all.begin() + end);
    const std::vector<DraftOutcome> expected(plain.begin(), plain.begin() + end);
    EXPECT_EQ(decode_->Differences(wanted, expected, MakeOracle(kGuesses[batch % 4], expected), most), "")
        << batch << " sequences, " << most << " tokens";
    EXPECT_EQ(DifferencesWithModule(wanted, expected, most), "") << batch << " sequences, " << most << " tokens";
  }
}

// One sequence: k accepted draft tokens make k + 1 tokens per step; the last step makes the rest.
TEST_P(DraftCases, RightOnesMakeFewerSteps) {
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

// A round that was queued after an end does not count.
TEST_P(DraftCases, NothingCountsBehindAnEnd) {
  std::vector<DraftWanted> wanted = {{.prompt = 20, .sampling = {.temperature = 0.9f, .seed = 5}, .max_tokens = 40}};
  const std::vector<DraftOutcome> all = decode_->Run(wanted, nullptr, 0);
  wanted[0].ends_after = 12;
  const std::vector<DraftOutcome> plain = decode_->Run(wanted, nullptr, 0);
  for (const int64_t most : {1, 2, 3, 7}) {
    const DraftCounts before = engine_->draft_counts();
    EXPECT_EQ(decode_->Differences(wanted, plain, MakeOracle(Guess::kRight, all), most), "");
    const DraftCounts after = engine_->draft_counts();
    EXPECT_EQ(after.steps - before.steps, (12 + most) / (most + 1)) << most;
  }
}

// A sequence may end at every position of a draft: by its limit, by the receiver of its tokens (a stop string, a client
// that has left), by a stop id. The other sequence continues.
TEST_P(DraftCases, EndAnywhere) {
  const std::vector<DraftWanted> wanted = {
      {.prompt = 12, .sampling = {.temperature = 1.0f, .seed = 8}, .max_tokens = 12},
      {.prompt = 9, .sampling = {.temperature = 1.0f, .seed = 9}, .max_tokens = 12}};
  const std::vector<DraftOutcome> all = decode_->Run(wanted, nullptr, 0);
  for (int64_t end = 1; end <= 7; ++end) {
    for (const int way : {0, 1, 2}) {
      std::vector<DraftWanted> cut = wanted;
      if (way == 0) cut[0].max_tokens = end;
      if (way == 1) cut[0].ends_after = end;
      if (way == 2) cut[0].stop_ids = {all[0].ids[static_cast<size_t>(end - 1)]};
      const std::vector<DraftOutcome> plain = decode_->Run(cut, nullptr, 0);
      const Guess guess = (end + way) % 3 == 0 ? Guess::kHalf : Guess::kRight;
      const int64_t drafted = decode_->drafted(), accepted = engine_->draft_counts().accepted;
      EXPECT_EQ(decode_->Differences(cut, plain, MakeOracle(guess, all), 5), "") << end << ", way " << way;
      EXPECT_EQ(engine_->draft_counts().accepted - accepted, decode_->drafted() - drafted) << end << ", way " << way;
    }
  }
}

// Masks that forbid draft tokens and change with each token, together with sequences without a mask.
TEST_P(DraftCases, MasksForbidDrafts) {
  std::vector<DraftWanted> wanted = {{.prompt = 30, .sampling = {.temperature = 0}, .max_tokens = 18, .masked = true},
                                     {.prompt = 31, .sampling = {.temperature = 1, .seed = 4}, .max_tokens = 18},
                                     {.prompt = 32,
                                      .sampling = {.temperature = 1, .repeat_penalty = 1.2f, .seed = 6},
                                      .max_tokens = 18,
                                      .masked = true}};
  const std::vector<DraftOutcome> plain = decode_->Run(wanted, nullptr, 0);
  for (const Guess guess : kGuesses)
    EXPECT_EQ(decode_->Differences(wanted, plain, MakeOracle(guess, plain), 6), "") << static_cast<int>(guess);
  EXPECT_EQ(DifferencesWithModule(wanted, plain, 4), "");

  // The same, with drafts shortened by the known masks: forbidden tokens are not verified.
  for (DraftWanted& w : wanted) w.cut = w.masked, w.speculate = w.masked;
  EXPECT_EQ(decode_->Differences(wanted, plain, MakeOracle(Guess::kHalf, plain), 6), "");
  EXPECT_EQ(decode_->Differences(wanted, plain, MakeOracle(Guess::kRight, plain), 6), "");
  EXPECT_EQ(LastOracle().all_accepted, LastOracle().proposed);
  EXPECT_GT(LastOracle().proposed, 0);
  EXPECT_EQ(decode_->Differences(wanted, plain, MakeOracle(Guess::kWrong, plain), 6), "");
  EXPECT_EQ(LastOracle().proposed, 0);
  EXPECT_EQ(DifferencesWithModule(wanted, plain, 4), "");
}

// The report of each verification: its position, its tokens, and how many were accepted.
TEST_P(DraftCases, AreReported) {
  const std::vector<DraftWanted> wanted = {{.prompt = 20, .sampling = {.temperature = 0}, .max_tokens = 20}};
  const std::vector<DraftOutcome> plain = decode_->Run(wanted, nullptr, 0);
  auto oracle = MakeOracle(Guess::kHalf, plain);
  auto session = std::move(engine_->NewSession()).value();
  const std::vector<TokenId> prompt(plain[0].session.begin(), plain[0].session.begin() + 20);
  ASSERT_TRUE(session->Append(prompt, LogitRows::kNone, nullptr).ok());
  oracle->Watch(session.get(), 0, 20);
  const auto sampler = std::move(Sampler::Create({.temperature = 0}, vocab())).value();
  std::vector<TokenId> ids = prompt;
  ids.push_back(prompt[0]);
  int64_t reports = 0;
  const DecodeItem item{.session = session.get(),
                        .sampler = sampler.get(),
                        .first = prompt[0],
                        .max_tokens = 20,
                        .on_verification = [&](const Verification& v) {
                          ++reports;
                          // The step's tokens are present: ids up to position + 2 + accepted.
                          ASSERT_EQ(static_cast<int64_t>(ids.size()),
                                    std::min<int64_t>(v.position + 3 + v.accepted, 41));
                          for (int64_t i = 0; i < v.accepted; ++i) {
                            EXPECT_EQ(v.proposed[static_cast<size_t>(i)], ids[static_cast<size_t>(v.position + 2 + i)]);
                          }
                        }};
  decode_->DecodeWith(std::move(oracle), 3, {&item, 1},
                      [&](size_t, const SampledToken& t) { return ids.push_back(t.id), true; });
  EXPECT_GT(reports, 2);
}

// Decoding stops in the middle. The session releases its memory and is restored from its snapshot, from memory or from
// a file; or a second session begins from the snapshot. A server does this if it needs memory, or keeps prefixes.
TEST_P(DraftCases, SnapshotsAfterRejectedOnesAreAsWithout) {
  const TempDir dir;
  const std::vector<TokenId> prompt = SomeTokens(250, 2, 40), tail = SomeTokens(9, 3, 300);
  std::vector<std::vector<float>> rows;
  std::vector<std::vector<TokenId>> ids;
  // 0: without drafts; 1: an oracle's drafts; 2: the module's drafts
  for (int who = 0; who < (module_ != nullptr ? 3 : 2); ++who) {
    static const std::vector<DraftOutcome> kNone(1);
    auto session = std::move(engine_->NewSession()).value();
    ASSERT_TRUE(session->Append(prompt, LogitRows::kNone, nullptr).ok());
    std::unique_ptr<Drafter> drafter;
    auto oracle = MakeOracle(Guess::kRandom, kNone);
    Oracle* const watches = oracle.get();
    if (who == 1) drafter = std::move(oracle);
    if (who == 2) drafter = std::move(module_);
    const auto sampler = std::move(Sampler::Create({.temperature = 1, .presence_penalty = 0.3f, .seed = 4}, vocab()))
                             .value();
    ids.emplace_back(1, 7);
    const auto decode = [&](Session& on, int64_t tokens) {
      if (who == 1) watches->Watch(&on, 0, prompt.size());
      const DecodeItem item{.session = &on, .sampler = sampler.get(), .first = ids.back().back(), .max_tokens = tokens};
      drafter = decode_->DecodeWith(std::move(drafter), 7, {&item, 1}, [&](size_t, const SampledToken& token) {
        return ids.back().push_back(token.id), true;
      });
    };
    decode(*session, 6);
    ASSERT_EQ(session->tokens().size(), 256u);
    auto snapshot = std::move(session->Snapshot()).value();  // its page is full, and shared
    rows.emplace_back();
    ASSERT_TRUE(session->Append(tail, LogitRows::kAll, &rows.back()).ok());
    session = std::move(engine_->NewSession(*snapshot)).value();
    decode(*session, 8);
    ASSERT_TRUE(std::move(session->Snapshot()).value()->Save(dir / "saved").ok());
    session.reset();
    snapshot = std::move(engine_->LoadSnapshot(dir / "saved")).value();
    session = std::move(engine_->NewSession(*snapshot)).value();
    decode(*session, 8);
    rows.emplace_back();
    ASSERT_TRUE(session->Append(tail, LogitRows::kAll, &rows.back()).ok());
    if (who == 2) module_ = std::move(drafter);
    EXPECT_EQ(ids.back(), ids[0]) << who;
    EXPECT_EQ(rows[2 * static_cast<size_t>(who)], rows[0]) << who;
    EXPECT_EQ(rows.back(), rows[1]) << who;
  }
}

}  // namespace dsv4::test
