// Lines on standard error: key=value, or one JSON object each. Any thread.
//
// A thread of its own writes them: a reader that does not read stops nobody. What does not fit its queue is dropped and
// counted, and a line says how many were.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace dsv4::server {

using LogField = std::pair<std::string_view, std::string>;

class Log {
 public:
  explicit Log(bool json, int fd = 2);
  ~Log();  // writes what waits, for a second at most

  void Line(std::string_view event, std::initializer_list<LogField> fields) const;

  // Lines dropped so far.
  uint64_t num_dropped() const;

 private:
  std::string Format(std::string_view event, std::initializer_list<LogField> fields) const;
  void Run();
  // False: the time to stop has come.
  bool WriteAll(std::string_view bytes);

  const bool json_;
  const int fd_;
  mutable std::mutex mutex_;
  mutable std::condition_variable wake_;
  mutable std::deque<std::string> lines_;
  mutable size_t queued_bytes_ = 0;
  mutable uint64_t num_dropped_ = 0;
  std::optional<std::chrono::steady_clock::time_point> stop_at_;  // when to give up what is left
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace dsv4::server
