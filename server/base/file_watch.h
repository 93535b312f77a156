// Checks at an interval whether files that the process has mapped (a model's weights) have been written to. It has its
// own thread, because a disk may block it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>

namespace dsv4::server {

class FileWatch {
 public:
  // `on_change` gets each changed file once, on this object's thread.
  FileWatch(std::chrono::milliseconds interval, std::function<void(const std::string& path)> on_change);
  ~FileWatch();

  // Returns true once a file has changed since the process mapped it.
  bool changed() const { return changed_; }

 private:
  void Run();
  void Look();

  const std::chrono::milliseconds interval_;
  const std::function<void(const std::string&)> on_change_;
  std::atomic<bool> changed_{false};
  std::set<std::string> told_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace dsv4::server
