#include "server/base/workers.h"

#include <algorithm>
#include <utility>

#include "server/base/memory_reserve.h"

namespace dsv4::server {

Workers::Workers(int num_threads, int num_for_short, size_t max_queued) : Workers(max_queued) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Run(/*short_only=*/false); });
  for (int i = 0; i < num_for_short; ++i) threads_.emplace_back([this] { Run(/*short_only=*/true); });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool Workers::Post(Length length, std::function<void()> call) {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= max_queued_) return false;
    queue_.push_back({length, std::move(call)});
  }
  wake_.notify_all();  // all: the one woken thread might not run calls of this length
  return true;
}

std::deque<Workers::Call>::iterator Workers::Next(bool short_only) {
  if (!short_only) return queue_.begin();
  return std::find_if(queue_.begin(), queue_.end(), [](const Call& c) { return c.length == Length::kShort; });
}

void Workers::Run(bool short_only) {
  while (true) {
    std::function<void()> call;
    {
      std::unique_lock lock(mutex_);
      auto next = queue_.end();
      wake_.wait(lock, [&] {
        next = Next(short_only);
        return stop_ || next != queue_.end();
      });
      if (next == queue_.end()) return;
      call = std::move(next->run);
      queue_.erase(next);
    }
    HasMemoryFor(call);  // out of memory: the call is dropped with its data
  }
}

}  // namespace dsv4::server
