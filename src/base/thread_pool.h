// Persistent worker threads with static ranges: item i of n always goes to the same worker, nothing is stolen, and a
// result never depends on the number of threads as long as items are independent.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace dsv4 {

class ThreadPool {
 public:
  // num_threads counts the calling thread; 0: one per core that this process may use.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls fn(begin, end, thread) for contiguous parts of [0, n), the calling thread included; returns when all are
  // done. `grain`: no part is smaller, so small work stays on few threads. Not reentrant.
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

  int num_threads_;
  Job job_;
  std::atomic<uint64_t> generation_{0};  // one more for every job
  std::atomic<int> pending_{0};          // workers that have not finished the present job
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

// How many cores this process may run on.
int NumUsableCores();

// pool->ParallelFor, or one call on this thread when pool is null.
template <typename Fn>
void ParallelFor(ThreadPool* pool, int64_t n, int64_t grain, const Fn& fn) {
  if (pool != nullptr) {
    pool->ParallelFor(n, grain, fn);
  } else if (n > 0) {
    fn(int64_t{0}, n, 0);
  }
}

}  // namespace dsv4
