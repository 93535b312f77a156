#include "engine/ranks/rank_threads.h"

#include <exception>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/str.h"

namespace dsv4 {

namespace {

constexpr const char* kNoMemory = "no memory for this step; use fewer sequences or a smaller --prefill-chunk";

// Throws std::bad_alloc only.
Status Caught(const std::function<Status(int)>& job, int rank) {
  try {
    return job(rank);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return Internal(StrCat("a step failed (", e.what(), ")"));
  }
}

}  // namespace

RankThreads::RankThreads(int count, Idle) : statuses_(static_cast<size_t>(count)), no_memory_(statuses_.size()) {
  DSV4_CHECK(count >= 1, count, " ranks");
}

RankThreads::RankThreads(int count) : RankThreads(count, Idle::kYes) {
  for (int rank = 1; rank < count; ++rank) threads_.emplace_back([this, rank] { Work(rank); });
}

RankThreads::~RankThreads() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  begin_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void RankThreads::Do(int rank) {
  Status& status = statuses_[static_cast<size_t>(rank)];
  try {
    status = Caught(*job_, rank);
  } catch (const std::bad_alloc&) {
    status = std::exchange(no_memory_[static_cast<size_t>(rank)], {});
  }
  if (!status.ok() && *failed_) (*failed_)(rank, status);
}

Status RankThreads::Run(const std::function<Status(int)>& job, const std::function<void(int, const Status&)>& failed) {
  for (Status& status : no_memory_) {
    if (status.ok()) status = ResourceExhausted(kNoMemory);
  }
  {
    const std::lock_guard lock(mutex_);
    job_ = &job;
    failed_ = &failed;
    running_ = static_cast<int>(threads_.size());
    ++generation_;
  }
  if (!threads_.empty()) begin_.notify_all();
  Do(0);
  std::unique_lock lock(mutex_);
  end_.wait(lock, [this] { return running_ == 0; });
  for (Status& status : statuses_) {
    if (!status.ok()) return std::move(status);
  }
  return {};
}

void RankThreads::Work(int rank) {
  uint64_t done = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    begin_.wait(lock, [&] { return stop_ || generation_ != done; });
    if (stop_) return;
    done = generation_;
    lock.unlock();
    Do(rank);
    lock.lock();
    if (--running_ == 0) end_.notify_all();
  }
}

}  // namespace dsv4
