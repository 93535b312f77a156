#include "server/base/workers.h"

#include <atomic>
#include <chrono>
#include <new>
#include <stdexcept>
#include <thread>

#include "gtest/gtest.h"
#include "server/base/memory_reserve.h"
#include "server/structured/compile_queue.h"
#include "support/thread_limit.h"

namespace dsv4::server {
namespace {

using Length = Workers::Length;

// Calls that have started wait until `open` is set.
struct Held {
  std::atomic<bool> open{false};
  std::atomic<int> begun{0}, done{0};
  void Run() {
    ++begun;
    while (!open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ++done;
  }
  void WaitForBegun(int n) const {
    for (int i = 0; i < 10000 && begun < n; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(begun, n);
  }
};

TEST(Workers, TakeNoMoreThanTheirQueueHolds) {
  Held held;
  {
    Workers workers(2, 1, 3);
    const auto call = [&] { held.Run(); };
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(workers.Post(Length::kShort, call));
    held.WaitForBegun(3);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(workers.Post(Length::kShort, call));
    EXPECT_FALSE(workers.Post(Length::kShort, call));
    held.open = true;
  }
  EXPECT_EQ(held.done, 6);
}

TEST(Workers, LongCallsLeaveAThreadForShortOnes) {
  Held held;
  std::atomic<bool> ran{false};
  {
    Workers workers(2, 1, 10);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(workers.Post(Length::kLong, [&] { held.Run(); }));
    held.WaitForBegun(2);
    EXPECT_TRUE(workers.Post(Length::kShort, [&] { ran = true; }));
    for (int i = 0; i < 10000 && !ran; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(ran);
    EXPECT_EQ(held.begun, 2);
    held.open = true;
  }
  EXPECT_EQ(held.done, 4);
}

TEST(Workers, GoOnWhereMemoryRanOut) {
  std::atomic<bool> ran{false};
  {
    Workers workers(1, 0, 10);
    EXPECT_TRUE(workers.Post(Length::kLong, [] { throw std::bad_alloc(); }));
    EXPECT_TRUE(workers.Post(Length::kLong, [&] { ran = true; }));
  }
  EXPECT_TRUE(ran);
}

TEST(MemoryReserve, ACallThatFindsNoMemoryIsToldApart) {
  bool ran = false;
  EXPECT_TRUE(HasMemoryFor([&] { ran = true; }));
  EXPECT_TRUE(ran);
  EXPECT_FALSE(HasMemoryFor([] { throw std::bad_alloc(); }));
  EXPECT_THROW(HasMemoryFor([] { throw std::runtime_error("another fault"); }), std::runtime_error);
}

TEST(CompileQueue, TakesNoMoreThanItHoldsAndCancelsAllAtItsEnd) {
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  std::atomic<int> done{0};
  const auto call = [&] {
    while (!*cancelled) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ++done;
  };
  int taken = 0;
  {
    CompileQueue queue(1, 2);
    for (int i = 0; i < 10; ++i) taken += queue.Post(call, cancelled) ? 1 : 0;
    EXPECT_GE(taken, 2);
    EXPECT_LE(taken, 3);  // one has started or not
  }
  EXPECT_EQ(done, taken);
}

TEST(Workers, ThreadsThatCannotBeStartedAreAnErrorAndTheOthersEnd) { DSV4_EXPECT_THREADS_RUN_OUT(Workers(200, 1, 1)); }

}  // namespace
}  // namespace dsv4::server
