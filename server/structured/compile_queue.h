// Threads that compile grammars. They are separate from the threads that read requests, because a schema may take
// seconds.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "server/base/workers.h"

namespace dsv4::server {

class CompileQueue {
 public:
  CompileQueue(int num_threads, size_t max_queued) : workers_(num_threads, 0, max_queued) {}
  ~CompileQueue();  // cancels all calls; queued calls still run, so that they can report it

  // `cancelled` ends the compilation in `call`; the caller may set it, too. Returns false if the queue is full.
  bool Post(std::function<void()> call, const std::shared_ptr<std::atomic<bool>>& cancelled);

 private:
  std::mutex mutex_;
  bool stopping_ = false;
  std::vector<std::weak_ptr<std::atomic<bool>>> flags_;
  Workers workers_;  // last: its threads end first
};

}  // namespace dsv4::server
