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
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <variant>

namespace dsv4::server {

// As text in MiB, in JSON as a number of bytes.
struct LogBytes {
  int64_t bytes;
};

struct LogField {
  std::string_view key;
  std::variant<std::string, int64_t, double, bool, LogBytes> value;  // an empty string: the field is left out
};

enum class LogLevel : uint8_t { kInfo, kWarning, kError };

// Rounded to as many digits behind the point: what a line says of a time or a rate.
double Rounded(double value, int digits);

class Log {
 public:
  explicit Log(bool json, int fd = 2);
  ~Log();  // writes what waits, for a second at most

  void Line(std::string_view event, std::initializer_list<LogField> fields) const {
    Line(LogLevel::kInfo, event, fields);
  }
  void Line(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) const {
    Line(level, event, std::span(fields.begin(), fields.size()));
  }
  void Line(LogLevel level, std::string_view event, std::span<const LogField> fields) const;

  // Lines dropped so far.
  uint64_t num_dropped() const;

 private:
  std::string Format(LogLevel level, std::string_view event, std::span<const LogField> fields) const;
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
  std::thread thread_;                                            // last: it uses all of the above
};

}  // namespace dsv4::server
