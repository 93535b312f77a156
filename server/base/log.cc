#include "server/base/log.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <new>
#include <type_traits>

#include "server/base/json.h"

namespace dsv4::server {

namespace {

constexpr size_t kMaxQueuedBytes = 1 << 20;
constexpr size_t kPiece = 4096;  // bytes that a pipe with room takes without blocking (PIPE_BUF)
constexpr std::chrono::milliseconds kLogPoll{100}, kStopTime{1000};

// 2026-11-21T08:45:00.123Z
std::string Now() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  std::array<char, 40> buffer;
  const size_t n = std::strftime(buffer.data(), buffer.size(), "%Y-%m-%dT%H:%M:%S", &utc);
  std::array<char, 8> fraction;
  std::snprintf(fraction.data(), fraction.size(), ".%03dZ", static_cast<int>(ms));
  return std::string(buffer.data(), n) + fraction.data();
}

// Returns true if a terminal would obey no part of `value`: it has no control characters, and no bytes that are control
// characters in another encoding.
bool IsPlain(std::string_view value) {
  return !value.empty() &&
         std::all_of(value.begin(), value.end(), [](char c) { return c > ' ' && c < 0x7f && c != '"' && c != '='; });
}

std::string AsciiText(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

constexpr std::array<const char*, 3> kLevels = {"info", "warning", "error"};

Json ToJson(const LogField& field) {
  return std::visit(
      [](const auto& value) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, LogBytes>) {
          return value.bytes;
        } else {
          return value;
        }
      },
      field.value);
}

std::string ToText(const LogField& field) {
  if (const auto* text = std::get_if<std::string>(&field.value)) return IsPlain(*text) ? *text : AsciiText(*text);
  if (const auto* size = std::get_if<LogBytes>(&field.value)) {
    std::array<char, 32> buffer;
    const int n = std::snprintf(buffer.data(), buffer.size(), "%.1fMiB", static_cast<double>(size->bytes) / (1 << 20));
    return {buffer.data(), static_cast<size_t>(n)};
  }
  return ToJson(field).dump();
}

bool IsLeftOut(const LogField& field) {
  const auto* text = std::get_if<std::string>(&field.value);
  return text != nullptr && text->empty();
}

}  // namespace

double Rounded(double value, int digits) {
  const double unit = std::pow(10.0, digits);
  return std::round(value * unit) / unit;
}

Log::Log(bool json, int fd, Sink sink) : json_(json), fd_(fd), sink_(std::move(sink)), thread_([this] { Run(); }) {}

Log::~Log() {
  {
    const std::lock_guard lock(mutex_);
    stop_at_ = std::chrono::steady_clock::now() + kStopTime;
  }
  wake_.notify_all();
  thread_.join();
}

uint64_t Log::num_dropped() const {
  const std::lock_guard lock(mutex_);
  return num_dropped_;
}

void Log::Line(LogLevel level, std::string_view event, std::span<const LogField> fields) const {
  try {
    std::string line = Format(level, event, fields);
    const std::lock_guard lock(mutex_);
    if (queued_bytes_ + line.size() > kMaxQueuedBytes) {
      ++num_dropped_;
      return;
    }
    queued_bytes_ += line.size();
    lines_.push_back(std::move(line));
  } catch (const std::bad_alloc&) {
    const std::lock_guard lock(mutex_);
    ++num_dropped_;
  }
  wake_.notify_one();
}

std::string Log::Format(LogLevel level, std::string_view event, std::span<const LogField> fields) const {
  std::string line;
  if (json_) {
    Json json = {{"time", Now()}, {"level", kLevels[static_cast<size_t>(level)]}, {"event", event}};
    for (const LogField& field : fields) {
      if (!IsLeftOut(field)) json[std::string(field.key)] = ToJson(field);
    }
    line = AsciiText(json);
  } else {
    line = Now() + ' ' + std::string(event);
    for (const LogField& field : fields) {
      if (!IsLeftOut(field)) line.append(" ").append(field.key).append("=").append(ToText(field));
    }
  }
  return line + '\n';
}

void Log::Run() {
  uint64_t num_told = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_at_ || !lines_.empty(); });
    if (lines_.empty()) return;
    std::string text = std::move(lines_.front());
    lines_.pop_front();
    queued_bytes_ -= text.size();
    const uint64_t num_dropped = num_dropped_;
    lock.unlock();
    try {
      if (num_dropped > num_told) {
        const LogField dropped{"dropped", static_cast<int64_t>(num_dropped - num_told)};
        text += Format(LogLevel::kWarning, "log", {&dropped, 1});
      }
      num_told = num_dropped;
    } catch (const std::bad_alloc&) {
      // A later line reports them.
    }
    const bool taken = WriteAll(text);
    lock.lock();
    if (!taken) return;
  }
}

bool Log::WriteAll(std::string_view bytes) {
  const auto is_over = [this] {
    const std::lock_guard lock(mutex_);
    return stop_at_ && std::chrono::steady_clock::now() > *stop_at_;
  };
  while (sink_ && !bytes.empty()) {
    const size_t end = bytes.find('\n');
    sink_(bytes.substr(0, end));
    bytes.remove_prefix(end + 1);
  }
  while (!bytes.empty()) {
    if (is_over()) return false;
    pollfd ready{.fd = fd_, .events = POLLOUT, .revents = 0};
    if (::poll(&ready, 1, static_cast<int>(kLogPoll.count())) <= 0) continue;
    const ssize_t n = ::write(fd_, bytes.data(), std::min(bytes.size(), kPiece));
    if (n < 0 && errno != EINTR && errno != EAGAIN) return true;  // the descriptor has no reader any more
    if (n > 0) bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace dsv4::server
