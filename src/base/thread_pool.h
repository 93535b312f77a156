// Persistent worker threads with static ranges: item i of n always goes to the same worker, and there is no work
// stealing. If items are independent, a result does not depend on the number of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include <sched.h>

#include "base/cpu_topology.h"

namespace dsv4 {

class ThreadPool {
 public:
  // num_threads includes the calling thread; 0: one per core that this process may use. Both constructors throw
  // std::system_error if the system has no more threads.
  explicit ThreadPool(int num_threads);
  // Thread i stays on cores[i]. Thread 0 is the caller: see PoolUse.
  explicit ThreadPool(std::vector<Core> cores);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }
  const std::vector<Core>& cores() const { return cores_; }  // empty: threads are not pinned
  int num_nodes() const { return num_nodes_; }               // NUMA nodes that the pinned threads are spread over

  // Calls fn(begin, end, thread) for contiguous parts of [0, n), also on the calling thread, and returns when all are
  // done. `grain`: the minimum size of a part, so that small work uses few threads. Not reentrant. If a part threw
  // std::bad_alloc, rethrows it after all are done; no other exception is allowed.
  template <typename Fn>
  void ParallelFor(int64_t n, int64_t grain, const Fn& fn) {
    const int parts = Parts(n, grain);
    if (parts <= 1) {
      if (n > 0) fn(int64_t{0}, n, 0);
      return;
    }
    const auto run = [](const void* context, int64_t begin, int64_t end, int thread) {
      (*static_cast<const Fn*>(context))(begin, end, thread);
    };
    Run({run, &fn, n, parts});
  }

 private:
  friend class PoolUse;

  // Starts no workers. If Start throws, the destructor ends the workers that it has started.
  ThreadPool(int num_threads, std::vector<Core>&& cores);
  void Start();

  struct Job {
    void (*run)(const void* context, int64_t begin, int64_t end, int thread) = nullptr;
    const void* context = nullptr;
    int64_t n = 0;
    int parts = 0;
  };

  int Parts(int64_t n, int64_t grain) const;
  void Run(const Job& job);
  void RunPart(const Job& job, int part) const;
  void Work(int worker);
  // Waits a moment. False: the limit of polls is reached, so sleep.
  bool Polls(int spins) const;

  int num_threads_;
  std::vector<Core> cores_;
  int num_nodes_ = 1;
  Job job_;
  std::atomic<uint64_t> generation_{0};             // incremented for every job
  std::atomic<int> pending_{0};                     // workers that have not finished the current job
  mutable std::atomic<bool> out_of_memory_{false};  // a part of the current job threw std::bad_alloc
  std::atomic<bool> stop_{false};
  std::atomic<int> uses_{0};  // live PoolUse objects
  std::vector<std::thread> workers_;
};

// The number of cores that this process may run on.
int NumUsableCores();

// The scope of many jobs in a row, such as a step. While it lives, idle workers poll for milliseconds before they
// sleep, because waking one costs more than most ops of a decode step. The calling thread stays on the first core of a
// pinned pool.
class PoolUse {
 public:
  explicit PoolUse(ThreadPool* pool);  // null: no effect
  ~PoolUse();
  PoolUse(const PoolUse&) = delete;
  PoolUse& operator=(const PoolUse&) = delete;

 private:
  ThreadPool* pool_;
  bool pinned_ = false;
  cpu_set_t before_;
};

// pool->ParallelFor, or one call on this thread if pool is null.
template <typename Fn>
void ParallelFor(ThreadPool* pool, int64_t n, int64_t grain, const Fn& fn) {
  if (pool != nullptr) {
    pool->ParallelFor(n, grain, fn);
  } else if (n > 0) {
    fn(int64_t{0}, n, 0);
  }
}

}  // namespace dsv4
