#include "engine/ranks/rank_threads.h"

#include <array>
#include <atomic>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "support/allocations.h"
#include "support/thread_limit.h"

namespace dsv4 {
namespace {

TEST(RankThreads, EveryRankRunsOnItsOwnThreadAndTheCallerIsTheFirst) {
  for (const int count : {1, 2, 8}) {
    RankThreads threads(count);
    std::array<std::thread::id, 8> first = {}, second = {};
    for (auto* ids : {&first, &second}) {
      const Status status = threads.Run([&](int rank) {
        (*ids)[static_cast<size_t>(rank)] = std::this_thread::get_id();
        return Status{};
      });
      EXPECT_TRUE(status.ok());
    }
    EXPECT_EQ(first, second);
    EXPECT_EQ(first[0], std::this_thread::get_id());
    for (int a = 0; a < count; ++a) {
      for (int b = 0; b < a; ++b) EXPECT_NE(first[static_cast<size_t>(a)], first[static_cast<size_t>(b)]);
    }
  }
}

TEST(RankThreads, JobsRunTogether) {
  RankThreads threads(4);
  for (int run = 0; run < 500; ++run) {
    std::atomic<int> here = 0;
    EXPECT_TRUE(threads
                    .Run([&](int) {
                      ++here;
                      while (here < 4) std::this_thread::yield();  // ends only when all have arrived
                      return Status{};
                    })
                    .ok());
  }
}

TEST(RankThreads, TheFirstRanksErrorIsReturnedAndTheNextJobRuns) {
  RankThreads threads(4);
  std::atomic<int> ran = 0;
  const Status status = threads.Run([&](int rank) {
    ++ran;
    return rank == 3 ? Internal("three") : rank == 1 ? NotFound("one") : Status{};
  });
  EXPECT_EQ(ran, 4);
  EXPECT_EQ(status.message(), "one");
  EXPECT_TRUE(threads.Run([](int) { return Status{}; }).ok());
}

// A rank that waits for a failed rank is notified.
TEST(RankThreads, AnErrorIsToldWhileOthersStillRun) {
  RankThreads threads(3);
  std::atomic<int> told = -1;
  const Status status = threads.Run(
      [&](int rank) -> Status {
        if (rank == 2) throw std::bad_alloc();
        while (told < 0) std::this_thread::yield();
        return {};
      },
      [&](int rank, const Status& why) {
        EXPECT_EQ(why.code(), StatusCode::kResourceExhausted);
        told = rank;
      });
  EXPECT_EQ(told, 2);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
}

TEST(RankThreads, ExceptionsBecomeStatuses) {
  for (const int count : {1, 2}) {
    RankThreads threads(count);
    EXPECT_EQ(threads
                  .Run([&](int rank) -> Status {
                    if (rank == count - 1) throw std::bad_alloc();
                    return {};
                  })
                  .code(),
              StatusCode::kResourceExhausted);
    EXPECT_EQ(threads
                  .Run([&](int rank) -> Status {
                    if (rank == count - 1) throw std::runtime_error("odd");
                    return {};
                  })
                  .message(),
              "a step failed (odd)");
  }
}

// The status for a lack of memory was made in advance, because there is no memory left to make it.
TEST(RankThreads, MemoryThatIsGoneForGoodIsAStatusToo) {
  for (const int count : {1, 2}) {
    RankThreads threads(count);
    StatusCode told = StatusCode::kOk;
    for (int run = 0; run < 2; ++run) {
      const int64_t failed = test::num_failed_allocations;
      const Status status = threads.Run(
          [&](int rank) -> Status {
            if (rank < count - 1) return {};
            test::allocation_limit.left = 0;
            return Internal(std::string(100, 'x'));
          },
          [&](int, const Status& why) {
            told = why.code();
            test::allocation_limit = {};
          });
      EXPECT_EQ(test::num_failed_allocations, failed + 1);
      EXPECT_EQ(told, StatusCode::kResourceExhausted);
      EXPECT_EQ(status.message(), "no memory for this step; use fewer sequences or a smaller --prefill-chunk");
    }
  }
}

TEST(RankThreads, ThreadsThatCannotBeStartedAreAnErrorAndTheOthersEnd) {
  DSV4_EXPECT_THREADS_RUN_OUT(RankThreads(200));
}

}  // namespace
}  // namespace dsv4
