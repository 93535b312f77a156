// The scheduler when its thread runs out of memory: requests end, but the thread and its counters stay intact.
#include <atomic>
#include <chrono>
#include <thread>

#include "io/test_files.h"
#include "server/schedule/scheduler_fixture.h"
#include "support/allocations.h"

namespace dsv4::server {
namespace {

class SchedulerMemory : public SchedulerTest, public ::testing::WithParamInterface<bool> {
 protected:
  ~SchedulerMemory() override { scheduler_.reset(); }

  // Runs one request, and submits another one at the same time: with 70 sequences, so that accepting them needs memory.
  // From the first one's step, `left` allocations of the thread succeed and one fails. Returns false if there were
  // fewer allocations.
  bool RunWith(int64_t left) {
    const int64_t failed = test::num_failed_allocations;
    left_ = left;
    const auto first = Submit({Counting(100, 200)}, 3);
    const auto more = Submit(std::vector<Ids>(70, Counting(static_cast<TokenId>(1000 + left % 1000), 20)), 1);
    open_ = true;
    WaitIdle();
    open_ = false;
    EXPECT_EQ(engine_.live_sessions, 0);
    if (test::num_failed_allocations > failed) return true;
    EXPECT_EQ(first->tokens[0], Counting(300, 3));
    EXPECT_EQ(more->open, 0u);
    return false;
  }

  const test::TempDir folder_;
  std::atomic<int64_t> left_ = -1;  // for the next step
  std::atomic<bool> open_ = false;  // lets that step continue
};

TEST_P(SchedulerMemory, WhereverItEndsTheNextRequestIsServed) {
  engine_.before_step = [this] {
    const int64_t left = left_.exchange(-1);
    if (left < 0) return;
    while (!open_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    test::allocation_limit = {.left = left, .once = true};
  };
  PrefixCacheOptions cache{.interval = 50};
  if (GetParam()) {
    cache.disk = folder_.path();
    cache.disk_bytes = 100000;
    cache.disk_queue_bytes = 10000;
  }
  Start({.kv_budget_bytes = 20000, .prefix_cache = cache});
  for (int64_t left = 0; RunWith(left); left += 1 + left / 20) {
    ASSERT_LT(left, 1000000);
    const auto next = Submit({Counting(500, 10)}, 3);
    Wait(next);
    EXPECT_EQ(next->tokens[0], Counting(510, 3)) << next->error.message();
    WaitIdle();
    if (HasFailure()) FAIL() << "behind " << left << " allocations";
  }
}

INSTANTIATE_TEST_SUITE_P(, SchedulerMemory, ::testing::Bool(),
                         [](const auto& p) { return p.param ? "disk" : "memory"; });

}  // namespace
}  // namespace dsv4::server
