#include "server/structured/compile_queue.h"

#include <utility>

namespace dsv4::server {

CompileQueue::~CompileQueue() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  for (const auto& weak : flags_) {
    if (const auto flag = weak.lock()) *flag = true;
  }
}

bool CompileQueue::Post(std::function<void()> call, const std::shared_ptr<std::atomic<bool>>& cancelled) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(flags_, [](const auto& weak) { return weak.expired(); });
    if (stopping_) *cancelled = true;
    flags_.push_back(cancelled);
  }
  return workers_.Post(Workers::Length::kLong, std::move(call));
}

}  // namespace dsv4::server
