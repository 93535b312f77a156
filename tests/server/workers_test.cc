#include "server/workers.h"

#include <atomic>
#include <chrono>
#include <new>
#include <thread>

#include "gtest/gtest.h"
#include "server/structured/compile_queue.h"

namespace dsv4::server {
namespace {

TEST(Workers, TakeNoMoreThanTheirQueueHolds) {
  std::atomic<bool> open{false};
  std::atomic<int> begun{0}, done{0};
  {
    Workers workers(2, 3);
    const auto call = [&] {
      ++begun;
      while (!open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++done;
    };
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(workers.Post(call));
    for (int i = 0; i < 10000 && begun < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(workers.Post(call));
    EXPECT_FALSE(workers.Post(call));
    open = true;
  }
  EXPECT_EQ(done, 5);
}

TEST(Workers, GoOnWhereMemoryRanOut) {
  std::atomic<bool> ran{false};
  {
    Workers workers(1, 10);
    EXPECT_TRUE(workers.Post([] { throw std::bad_alloc(); }));
    EXPECT_TRUE(workers.Post([&] { ran = true; }));
  }
  EXPECT_TRUE(ran);
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
    EXPECT_LE(taken, 3);  // one has begun, or not yet
  }
  EXPECT_EQ(done, taken);
}

}  // namespace
}  // namespace dsv4::server
