#include "server/base/file_watch.h"

#include <utility>

#include "dsv4/mapped_files.h"
#include "server/base/memory_reserve.h"

namespace dsv4::server {

FileWatch::FileWatch(std::chrono::milliseconds interval, std::function<void(const std::string&)> on_change)
    : interval_(interval), on_change_(std::move(on_change)), thread_([this] { Run(); }) {}

FileWatch::~FileWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void FileWatch::Run() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, interval_, [this] { return stop_; })) {
    lock.unlock();
    HasMemoryFor([this] { Look(); });  // out of memory: the next interval tries again
    lock.lock();
  }
}

void FileWatch::Look() {
  for (const std::string& path : ChangedMappedFiles()) {
    changed_ = true;
    if (told_.insert(path).second) on_change_(path);
  }
}

}  // namespace dsv4::server
