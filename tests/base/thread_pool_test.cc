#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support/thread_limit.h"

namespace dsv4 {
namespace {

TEST(ThreadPool, EveryItemExactlyOnce) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (const int64_t n : {0, 1, 2, 3, 6, 7, 8, 63, 64, 65, 1000}) {
      for (const int64_t grain : {0, 1, 2, 8, 64, 5000}) {
        std::vector<int> count(static_cast<size_t>(n));  // plain integers: ThreadSanitizer sees two writers
        pool.ParallelFor(n, grain, [&](int64_t begin, int64_t end, int) {
          for (int64_t i = begin; i < end; ++i) ++count[static_cast<size_t>(i)];
        });
        EXPECT_TRUE(std::all_of(count.begin(), count.end(), [](int c) { return c == 1; }))
            << threads << " threads, " << n << " items, grain " << grain;
      }
    }
  }
}

TEST(ThreadPool, RangesAreStaticContiguousAndNoSmallerThanTheGrain) {
  ThreadPool pool(4);
  for (const int64_t n : {1, 4, 5, 10, 17, 100}) {
    for (const int64_t grain : {1, 3, 30}) {
      const auto owners = [&] {
        std::vector<int> owner(static_cast<size_t>(n), -1);
        std::atomic<int64_t> smallest{n};
        pool.ParallelFor(n, grain, [&](int64_t begin, int64_t end, int thread) {
          EXPECT_LT(begin, end);
          for (int64_t i = begin; i < end; ++i) owner[static_cast<size_t>(i)] = thread;
          int64_t seen = smallest.load();
          while (end - begin < seen && !smallest.compare_exchange_weak(seen, end - begin)) {
          }
        });
        EXPECT_GE(smallest.load(), std::min(n, grain)) << n << " items, grain " << grain;
        return owner;
      };
      const std::vector<int> first = owners();
      EXPECT_TRUE(std::is_sorted(first.begin(), first.end()));
      EXPECT_LT(first.back(), 4);
      EXPECT_EQ(owners(), first);
    }
  }
}

TEST(ThreadPool, EqualItemsAreSpreadEvenly) {
  ThreadPool pool(4);
  std::vector<int64_t> sizes(4);
  pool.ParallelFor(10, 1,
                   [&](int64_t begin, int64_t end, int thread) { sizes[static_cast<size_t>(thread)] = end - begin; });
  EXPECT_EQ(*std::min_element(sizes.begin(), sizes.end()), 2);
  EXPECT_EQ(*std::max_element(sizes.begin(), sizes.end()), 3);
}

TEST(ThreadPool, ThousandsOfJobsSeeEachOthersWrites) {
  ThreadPool pool(3);
  std::vector<int64_t> x(48), y(48);
  for (int64_t job = 0; job < 3000; ++job) {
    const std::vector<int64_t>& from = job % 2 ? y : x;
    std::vector<int64_t>& to = job % 2 ? x : y;
    pool.ParallelFor(48, 1, [&](int64_t begin, int64_t end, int) {
      // Reads the results of other threads in the previous job: the pool orders the jobs.
      for (int64_t i = begin; i < end; ++i) to[static_cast<size_t>(i)] = from[static_cast<size_t>(47 - i)] + 1;
    });
  }
  EXPECT_TRUE(std::all_of(x.begin(), x.end(), [](int64_t v) { return v == 3000; }));
}

TEST(ThreadPool, WakesWorkersThatSleep) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // longer than workers poll
    std::atomic<int> items{0};
    pool.ParallelFor(3, 1, [&](int64_t begin, int64_t end, int thread) {
      if (thread == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // and the caller also sleeps
      items += static_cast<int>(end - begin);
    });
    EXPECT_EQ(items.load(), 3);
  }
}

TEST(ThreadPool, DestructionAtAnyMoment) {
  for (int round = 0; round < 200; ++round) {
    ThreadPool pool(1 + round % 4);
    std::atomic<int> items{0};
    for (int job = 0; job < round % 3; ++job) {
      pool.ParallelFor(10, 1, [&](int64_t begin, int64_t end, int) { items += static_cast<int>(end - begin); });
    }
    EXPECT_EQ(items.load(), round % 3 * 10);
  }
}

TEST(ThreadPool, TwoPoolsDoNotDisturbEachOther) {
  const auto work = [] {
    ThreadPool pool(2);
    int64_t total = 0;
    for (int job = 0; job < 1000; ++job) {
      int64_t part[2] = {};
      pool.ParallelFor(100, 1, [&](int64_t begin, int64_t end, int thread) { part[thread] += end - begin; });
      total += part[0] + part[1];
    }
    EXPECT_EQ(total, 100000);
  };
  std::thread other(work);
  work();
  other.join();
}

TEST(ThreadPool, NoPoolRunsOnTheCallingThread) {
  int calls = 0;
  ParallelFor(nullptr, 10, 1, [&](int64_t begin, int64_t end, int thread) {
    ++calls;
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 10);
    EXPECT_EQ(thread, 0);
  });
  ParallelFor(nullptr, 0, 1, [&](int64_t, int64_t, int) { ++calls; });
  EXPECT_EQ(calls, 1);
}

Core CoreOfThisThread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  EXPECT_EQ(CPU_COUNT(&set), 1);
  int id = 0;
  while (!CPU_ISSET(static_cast<size_t>(id), &set)) ++id;
  return {.id = id};
}

TEST(ThreadPool, PinnedThreadsStayOnTheirCores) {
  const std::vector<Core> cores = PlaceThreads(UsableCores(), NumUsableCores());
  ThreadPool pool(cores);
  EXPECT_EQ(pool.num_threads(), NumUsableCores());
  std::vector<int> ids(cores.size(), -1);
  {
    const PoolUse caller(&pool);
    pool.ParallelFor(static_cast<int64_t>(cores.size()), 1, [&](int64_t begin, int64_t, int thread) {
      EXPECT_EQ(begin, thread);
      ids[static_cast<size_t>(begin)] = CoreOfThisThread().id;
    });
  }
  for (size_t i = 0; i < cores.size(); ++i) EXPECT_EQ(ids[i], cores[i].id);
  EXPECT_EQ(UsableCores().size(), cores.size());  // the caller is not pinned any more
  const PoolUse nothing(nullptr);
  ThreadPool free(2);
  const PoolUse not_pinned(&free);
  EXPECT_EQ(UsableCores().size(), cores.size());
}

TEST(ThreadPool, MemoryThatRunsOutOnAnyThreadIsTheCallersError) {
  ThreadPool pool(4);
  for (int64_t bad = 0; bad < 4; ++bad) {
    std::atomic<int> done{0};
    const auto work = [&](int64_t begin, int64_t, int) {
      if (begin == bad) throw std::bad_alloc();
      ++done;
    };
    EXPECT_THROW(pool.ParallelFor(4, 1, work), std::bad_alloc);
    EXPECT_EQ(done, 3);  // all have ended
  }
  int64_t sum = 0;
  pool.ParallelFor(1, 1, [&](int64_t, int64_t end, int) { sum += end; });
  std::atomic<int> parts{0};
  pool.ParallelFor(4, 1, [&](int64_t, int64_t, int) { ++parts; });
  EXPECT_EQ(sum, 1);
  EXPECT_EQ(parts, 4);
}

TEST(ThreadPool, ZeroMeansOnePerUsableCore) {
  EXPECT_GE(NumUsableCores(), 1);
  EXPECT_EQ(ThreadPool(0).num_threads(), NumUsableCores());
}

TEST(ThreadPool, ThreadsThatCannotBeStartedAreAnErrorAndTheOthersEnd) {
  DSV4_EXPECT_THREADS_RUN_OUT(ThreadPool(200));
  DSV4_EXPECT_THREADS_RUN_OUT(ThreadPool(std::vector<Core>(200)));
}

}  // namespace
}  // namespace dsv4
