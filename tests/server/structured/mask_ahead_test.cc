// Masks that workers compute: order, errors, and slow sequences that must not delay quick ones.
#include "server/structured/mask_ahead.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <random>
#include <utility>

#include "gtest/gtest.h"
#include "support/allocations.h"
#include "support/thread_limit.h"

namespace dsv4::server {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kLong{30};

// Keeps this thread's core busy, because only CPU time counts as work.
void Compute(std::chrono::nanoseconds time) {
  const auto computed = [] {
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
  };
  const auto end = computed() + time;
  while (computed() < end) {
  }
}

// Allows the number of tokens so far, as a mask of one word. Some tokens make it compute or wait.
struct TokenCounter : Grammar {
  struct Matcher : GrammarMatcher {
    Matcher(const TokenCounter& its_grammar, CancelFlag flag) : grammar(its_grammar), cancelled(std::move(flag)) {}
    std::span<const uint32_t> Allowed() override { return {&count, 1}; }
    bool Accept(TokenId id) override {
      test::allocation_limit = {};  // other calls have freed some
      if (id == kSlow) Compute(std::chrono::milliseconds(30));
      if (id == kHang) {
        ++grammar.hanging;
        while (!grammar.open && !*cancelled) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        --grammar.hanging;
      }
      if (id == kTooMuch) state = InvalidArgument("too much");
      if (id == kNoMemory) {
        test::allocation_limit.left = 0;  // no memory for the error message either
        throw std::bad_alloc();
      }
      if (id == kWrong || id == kTooMuch) return false;
      ++grammar.taken;
      ++count;
      return true;
    }
    void Rollback(size_t tokens) override { count -= static_cast<uint32_t>(tokens); }
    bool AcceptText(std::string_view text) override { return text == "fits"; }
    bool complete() const override { return count == 3; }
    const Status& status() const override { return state; }
    const TokenCounter& grammar;
    const CancelFlag cancelled;
    uint32_t count = 100;
    Status state;
  };
  static constexpr TokenId kSlow = 1, kHang = 2, kWrong = 3, kTooMuch = 4, kNoMemory = 5;
  std::unique_ptr<GrammarMatcher> NewMatcher(CancelFlag flag) const override {
    test::allocation_limit = {};
    return std::make_unique<Matcher>(*this, flag);
  }
  std::atomic<bool> open = false;
  mutable std::atomic<int> hanging = 0, taken = 0;
};

MaskAhead::State Wait(MaskAhead& mask) { return mask.WaitUntil(Clock::now() + kLong); }

TEST(MaskAhead, TakesTokensInOrder) {
  const auto grammar = std::make_shared<TokenCounter>();
  MaskWorkers workers(2, [] {});
  const auto mask = workers.Begin(grammar, "fits");
  for (uint32_t i = 0; i < 200; ++i) {
    ASSERT_EQ(Wait(*mask), MaskAhead::State::kReady);
    EXPECT_EQ(mask->allowed()[0], 100 + i);
    mask->Accept(50);
  }
  for (int i = 0; i < 50; ++i) mask->Accept(50);  // several before the mask is needed
  ASSERT_EQ(Wait(*mask), MaskAhead::State::kReady);
  EXPECT_EQ(mask->allowed()[0], 350u);
}

using Ids = std::vector<TokenId>;

// Waits until nothing is pending, and returns how many tokens were accepted.
int SettledTaken(const TokenCounter& grammar) {
  int taken = -1;
  for (int same = 0; same < 20; std::this_thread::sleep_for(std::chrono::milliseconds(1)))
    same = std::exchange(taken, grammar.taken.load()) == grammar.taken ? same + 1 : 0;
  return taken;
}

TEST(MaskAhead, WhatIsForeseenIsThereAtOnce) {
  const auto grammar = std::make_shared<TokenCounter>();
  MaskWorkers workers(1, [] {});
  const auto mask = workers.Begin(grammar);
  ASSERT_EQ(Wait(*mask), MaskAhead::State::kReady);
  EXPECT_EQ(mask->Foresee(Ids{50, 51, 52}, Clock::now() + kLong), 3u);
  EXPECT_EQ(SettledTaken(*grammar), 6);  // once to check the tokens, once for the masks after them
  EXPECT_EQ(mask->allowed()[0], 100u);
  for (TokenId id = 50; id < 52; ++id) {
    mask->Accept(id);
    ASSERT_EQ(mask->WaitUntil(Clock::time_point::min()), MaskAhead::State::kReady) << id;
    EXPECT_EQ(mask->allowed()[0], static_cast<uint32_t>(id + 51));
  }
  EXPECT_EQ(SettledTaken(*grammar), 6);
  // A token comes that was not guessed. Then other tokens are guessed, and one that is known already.
  mask->Accept(60);
  ASSERT_EQ(Wait(*mask), MaskAhead::State::kReady);
  EXPECT_EQ(mask->allowed()[0], 103u);
  EXPECT_EQ(mask->Foresee(Ids{61, 62}, Clock::now() + kLong), 2u);
  EXPECT_EQ(mask->Foresee(Ids{61, 63, TokenCounter::kWrong, 64}, Clock::now() + kLong), 2u);
  EXPECT_EQ(mask->Foresee(Ids{TokenCounter::kWrong, 64}, Clock::now() + kLong), 0u);
  for (int i = 0; i < 3; ++i) mask->Accept(61 + i);
  ASSERT_EQ(Wait(*mask), MaskAhead::State::kReady);
  EXPECT_EQ(mask->allowed()[0], 106u);
}

// Whatever is guessed, and whether or not a worker has handled it, the tokens that come decide.
TEST(MaskAhead, GuessesChangeNothing) {
  const auto grammar = std::make_shared<TokenCounter>();
  MaskWorkers workers(2, [] {});
  const auto mask = workers.Begin(grammar);
  std::minstd_rand random(7);
  uint32_t count = 100;
  for (int round = 0; round < 3000; ++round) {
    ASSERT_EQ(Wait(*mask), MaskAhead::State::kReady);
    ASSERT_EQ(mask->allowed()[0], count) << round;
    Ids guess(random() % 5);
    for (TokenId& id : guess) id = random() % 8 == 0 ? TokenCounter::kWrong : 50;
    const auto wrong = static_cast<size_t>(std::find(guess.begin(), guess.end(), TokenCounter::kWrong) - guess.begin());
    const bool waits = random() % 2 == 0;
    const size_t allowed = mask->Foresee(guess, waits ? Clock::now() + kLong : Clock::now());
    EXPECT_LE(allowed, wrong);
    if (waits) {
      EXPECT_EQ(allowed, wrong);
    }
    for (uint32_t more = random() % 5; more > 0; --more, ++count) mask->Accept(random() % 4 == 0 ? 51 : 50);
  }
}

// A guess that exceeds a limit of the matcher does not fail the sequence.
TEST(MaskAhead, AGuessThatCostsTheMatcherIsForgotten) {
  for (const TokenId costs : {TokenCounter::kTooMuch, TokenCounter::kNoMemory}) {
    const auto grammar = std::make_shared<TokenCounter>();
    MaskWorkers workers(1, [] {});
    const auto mask = workers.Begin(grammar, "fits");
    mask->Accept(50);
    ASSERT_EQ(Wait(*mask), MaskAhead::State::kReady);
    EXPECT_EQ(mask->Foresee(Ids{50, costs}, Clock::now() + kLong), 0u);
    for (uint32_t i = 0; i < 3; ++i) {
      ASSERT_EQ(Wait(*mask), MaskAhead::State::kReady) << mask->status().message();
      EXPECT_EQ(mask->allowed()[0], 101 + i);
      EXPECT_EQ(mask->Foresee(Ids{50}, Clock::now() + kLong), 0u);  // no more guesses for this sequence
      mask->Accept(50);
    }
  }
}

TEST(MaskAhead, SaysWhatIsWrong) {
  const auto grammar = std::make_shared<TokenCounter>();
  MaskWorkers workers(2, [] {});
  EXPECT_EQ(Wait(*workers.Begin(grammar, "does not fit")), MaskAhead::State::kFree);
  const auto wrong = workers.Begin(grammar), too_much = workers.Begin(grammar);
  wrong->Accept(TokenCounter::kWrong);
  too_much->Accept(TokenCounter::kTooMuch);
  EXPECT_EQ(Wait(*wrong), MaskAhead::State::kFailed);
  EXPECT_EQ(wrong->status().code(), StatusCode::kInternal);
  EXPECT_EQ(Wait(*too_much), MaskAhead::State::kFailed);
  EXPECT_EQ(too_much->status().message(), "too much");
  too_much->Accept(50);  // has no effect
  EXPECT_EQ(Wait(*too_much), MaskAhead::State::kFailed);
}

TEST(MaskAhead, WhereMemoryIsGoneOneSequenceFails) {
  const auto grammar = std::make_shared<TokenCounter>();
  MaskWorkers workers(1, [] {});
  const auto poor = workers.Begin(grammar), other = workers.Begin(grammar);
  for (const auto* mask : {&poor, &other}) ASSERT_EQ(Wait(**mask), MaskAhead::State::kReady);
  poor->Accept(TokenCounter::kNoMemory);
  other->Accept(50);
  EXPECT_EQ(Wait(*poor), MaskAhead::State::kFailed);
  EXPECT_EQ(poor->status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(poor->status().message(), "no memory for the grammar of the output");
  EXPECT_EQ(Wait(*other), MaskAhead::State::kReady);
}

TEST(MaskAhead, CallsWhoWasTooEarly) {
  const auto grammar = std::make_shared<TokenCounter>();
  std::atomic<int> calls = 0;
  MaskWorkers workers(2, [&] { ++calls; });
  const auto mask = workers.Begin(grammar);
  ASSERT_EQ(Wait(*mask), MaskAhead::State::kReady);
  EXPECT_FALSE(mask->CallWhenReady());
  mask->Accept(TokenCounter::kHang);
  EXPECT_EQ(mask->WaitUntil(Clock::now() + std::chrono::milliseconds(1)), MaskAhead::State::kBusy);
  EXPECT_TRUE(mask->CallWhenReady());
  grammar->open = true;
  EXPECT_EQ(Wait(*mask), MaskAhead::State::kReady);
  for (int i = 0; i < 10000 && calls == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(calls, 1);
}

// However many heavy sequences there are, one worker remains for the others.
TEST(MaskAhead, TheSlowLeaveAWorkerToTheQuick) {
  const auto grammar = std::make_shared<TokenCounter>();
  MaskWorkers workers(2, [] {});
  std::vector<std::unique_ptr<MaskAhead>> slow;
  for (int i = 0; i < 5; ++i) {
    slow.push_back(workers.Begin(grammar));
    slow.back()->Accept(TokenCounter::kSlow);
    ASSERT_EQ(Wait(*slow.back()), MaskAhead::State::kReady);
  }
  for (const auto& mask : slow) mask->Accept(TokenCounter::kHang);
  for (int i = 0; i < 10000 && grammar->hanging == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto quick = workers.Begin(grammar);
  for (int i = 0; i < 100; ++i) {
    quick->Accept(50);
    ASSERT_EQ(Wait(*quick), MaskAhead::State::kReady);
  }
  EXPECT_EQ(grammar->hanging, 1);
  slow.clear();  // cancels them
  for (int i = 0; i < 10000 && grammar->hanging > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(grammar->hanging, 0);
}

TEST(MaskAhead, ThreadsThatCannotBeStartedAreAnErrorAndTheOthersEnd) {
  DSV4_EXPECT_THREADS_RUN_OUT(MaskWorkers(200, [] {}));
}

}  // namespace
}  // namespace dsv4::server
