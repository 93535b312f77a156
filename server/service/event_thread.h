// The thread that calls a service's callbacks.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace dsv4::server {

class EventThread {
 public:
  // Throws std::system_error if the system has no more threads.
  EventThread() : thread_([this] { Run(); }) {}
  ~EventThread() { Finish(); }

  // Calls are made in order. Waits while many are queued, except on this thread itself.
  void Post(std::function<void()> call);

  // Makes the queued calls and ends the thread.
  void Finish();

  bool is_current() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  void Run();

  static constexpr size_t kMaxQueued = 1024;  // each has what one step brought

  std::mutex mutex_;
  std::condition_variable wake_, room_;
  std::deque<std::function<void()>> queue_;
  bool finish_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace dsv4::server
