#include "workers.h"

#include <new>
#include <utility>

#include "memory_reserve.h"

namespace dsv4::server {

Workers::Workers(int num_threads, size_t max_queued) : max_queued_(max_queued) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Run(); });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool Workers::Post(std::function<void()> call) {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= max_queued_) return false;
    queue_.push_back(std::move(call));
  }
  wake_.notify_one();
  return true;
}

void Workers::Run() {
  while (true) {
    std::function<void()> call;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      call = std::move(queue_.front());
      queue_.pop_front();
    }
    try {
      call();
    } catch (const std::bad_alloc&) {
      RefillMemoryReserve();  // what it worked on is let go with it
    }
  }
}

}  // namespace dsv4::server
