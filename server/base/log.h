// Writes lines to standard error or to a function: key=value pairs, or one JSON object per line. Any thread may call
// it.
//
// A separate thread writes the lines, so a reader that stops reading blocks no caller. Lines that do not fit the queue
// are dropped and counted; a later line reports the count.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <variant>

namespace dsv4::server {

// Written in MiB in text form and in bytes in JSON.
struct LogBytes {
  int64_t bytes;
};

struct LogField {
  std::string_view key;
  std::variant<std::string, int64_t, double, bool, LogBytes> value;  // an empty string leaves the field out
};

enum class LogLevel : uint8_t { kInfo, kWarning, kError };

// Rounds to this many decimal places.
double Rounded(double value, int digits);

class Log {
 public:
  // Gets each line, without its newline, on the thread that writes. Must not throw.
  using Sink = std::function<void(std::string_view line)>;
  explicit Log(bool json, int fd = 2, Sink sink = {});
  ~Log();  // writes queued lines, for at most one second

  void Line(std::string_view event, std::initializer_list<LogField> fields) const {
    Line(LogLevel::kInfo, event, fields);
  }
  void Line(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) const {
    Line(level, event, std::span(fields.begin(), fields.size()));
  }
  void Line(LogLevel level, std::string_view event, std::span<const LogField> fields) const;

  uint64_t num_dropped() const;

 private:
  std::string Format(LogLevel level, std::string_view event, std::span<const LogField> fields) const;
  void Run();
  // Returns false if it is time to stop.
  bool WriteAll(std::string_view bytes);

  const bool json_;
  const int fd_;
  const Sink sink_;  // empty: fd_
  mutable std::mutex mutex_;
  mutable std::condition_variable wake_;
  mutable std::deque<std::string> lines_;
  mutable size_t queued_bytes_ = 0;
  mutable uint64_t num_dropped_ = 0;
  std::optional<std::chrono::steady_clock::time_point> stop_at_;  // deadline for writing the queued lines
  std::thread thread_;                                            // last: it uses all of the above
};

}  // namespace dsv4::server
