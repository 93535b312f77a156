#include "server/service/event_thread.h"

#include <utility>

namespace dsv4::server {

void EventThread::Post(std::function<void()> call) {
  {
    std::unique_lock lock(mutex_);
    if (!is_current()) room_.wait(lock, [this] { return queue_.size() < kMaxQueued; });
    queue_.push_back(std::move(call));
  }
  wake_.notify_one();
}

void EventThread::Finish() {
  {
    const std::lock_guard lock(mutex_);
    finish_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void EventThread::Run() {
  while (true) {
    std::function<void()> call;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return finish_ || !queue_.empty(); });
      if (queue_.empty()) return;
      call = std::move(queue_.front());
      queue_.pop_front();
    }
    room_.notify_one();
    call();
  }
}

}  // namespace dsv4::server
