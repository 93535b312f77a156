#include "base/thread_pool.h"

#include <algorithm>
#include <new>
#include <utility>

namespace dsv4 {

namespace {

// Polls before a worker sleeps: about 20 us. Within a step, whose serial parts take up to a millisecond, about 5 ms; a
// worker then yields its core between polls.
constexpr int kSpins = 2000, kSpinsInUse = 250000, kSpinsPerYield = 64;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Pins the calling thread. If the core no longer exists, the thread is not moved.
bool PinTo(const Core& core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(core.id), &set);
  return sched_setaffinity(0, sizeof(set), &set) == 0;
}

}  // namespace

int NumUsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int num_threads, std::vector<Core>&& cores)
    : num_threads_(num_threads), cores_(std::move(cores)), num_nodes_(NumNodes(cores_)) {}

ThreadPool::ThreadPool(int num_threads) : ThreadPool(num_threads > 0 ? num_threads : NumUsableCores(), {}) { Start(); }

ThreadPool::ThreadPool(std::vector<Core> cores)
    : ThreadPool(std::max(1, static_cast<int>(cores.size())), std::move(cores)) {
  Start();
}

void ThreadPool::Start() {
  for (int i = 1; i < num_threads_; ++i) {
    workers_.emplace_back([this, i] {
      if (!cores_.empty()) (void)PinTo(cores_[static_cast<size_t>(i)]);
      Work(i);
    });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

int ThreadPool::Parts(int64_t n, int64_t grain) const {
  return static_cast<int>(std::clamp<int64_t>(n / std::max<int64_t>(grain, 1), 1, num_threads_));
}

void ThreadPool::RunPart(const Job& job, int part) const {
  const int64_t begin = job.n * part / job.parts;
  const int64_t end = job.n * (part + 1) / job.parts;
  if (begin >= end) return;
  try {
    job.run(job.context, begin, end, part);
  } catch (const std::bad_alloc&) {
    out_of_memory_.store(true, std::memory_order_relaxed);
  }
}

bool ThreadPool::Polls(int spins) const {
  if (spins >= kSpinsInUse || (spins >= kSpins && uses_.load(std::memory_order_relaxed) == 0)) return false;
  if (spins >= kSpins && spins % kSpinsPerYield == 0) std::this_thread::yield();
  Pause();
  return true;
}

void ThreadPool::Run(const Job& job) {
  job_ = job;
  pending_.store(num_threads_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  RunPart(job, 0);
  for (int spins = 0;; ++spins) {
    const int pending = pending_.load(std::memory_order_acquire);
    if (pending == 0) break;
    if (!Polls(spins)) pending_.wait(pending, std::memory_order_acquire);
  }
  if (out_of_memory_.exchange(false, std::memory_order_relaxed)) throw std::bad_alloc();
}

void ThreadPool::Work(int worker) {
  uint64_t seen = 0;
  for (;;) {
    for (int spins = 0; generation_.load(std::memory_order_acquire) == seen; ++spins) {
      if (!Polls(spins)) generation_.wait(seen, std::memory_order_acquire);
    }
    ++seen;
    if (stop_.load(std::memory_order_relaxed)) return;
    if (worker < job_.parts) RunPart(job_, worker);
    if (pending_.fetch_sub(1, std::memory_order_release) == 1) pending_.notify_one();
  }
}

PoolUse::PoolUse(ThreadPool* pool) : pool_(pool) {
  if (pool_ == nullptr) return;
  pool_->uses_.fetch_add(1, std::memory_order_relaxed);
  if (pool_->cores().empty()) return;
  CPU_ZERO(&before_);
  pinned_ = sched_getaffinity(0, sizeof(before_), &before_) == 0 && PinTo(pool_->cores().front());
}

PoolUse::~PoolUse() {
  if (pool_ == nullptr) return;
  pool_->uses_.fetch_sub(1, std::memory_order_relaxed);
  if (pinned_) (void)sched_setaffinity(0, sizeof(before_), &before_);
}

}  // namespace dsv4
