// Masks worked out by workers: in order, with what goes wrong, and without the slow keeping the quick from them.
#include "server/structured/mask_ahead.h"

#include <time.h>

#include <atomic>
#include <new>

#include "gtest/gtest.h"
#include "support/allocations.h"
#include "support/thread_limit.h"

namespace dsv4::server {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kLong{30};

// Keeps this thread's core busy: waiting is no work.
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

// Allows the number of tokens so far, as a mask of one word; computes or waits where a token says so.
struct TokenCounter : Grammar {
  struct Matcher : GrammarMatcher {
    Matcher(const TokenCounter& its_grammar, CancelFlag flag) : grammar(its_grammar), cancelled(std::move(flag)) {}
    std::span<const uint32_t> Allowed() override { return {&count, 1}; }
    bool Accept(TokenId id) override {
      test::allocation_limit = {};  // others have let go of some
      if (id == kSlow) Compute(std::chrono::milliseconds(30));
      if (id == kHang) {
        ++grammar.hanging;
        while (!grammar.open && !*cancelled) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        --grammar.hanging;
      }
      if (id == kTooMuch) state = InvalidArgument("too much");
      if (id == kNoMemory) {
        test::allocation_limit.left = 0;  // nor is there any for what is said of it
        throw std::bad_alloc();
      }
      ++count;
      return id != kWrong && id != kTooMuch;
    }
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
  mutable std::atomic<int> hanging = 0;
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
  for (int i = 0; i < 50; ++i) mask->Accept(50);  // several before it is asked
  ASSERT_EQ(Wait(*mask), MaskAhead::State::kReady);
  EXPECT_EQ(mask->allowed()[0], 350u);
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
  too_much->Accept(50);  // of no effect
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

// However many heavy ones there are, a worker is left for the others.
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
