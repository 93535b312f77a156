#include "log.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>

#include "json.h"

namespace dsv4::server {

namespace {

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

}  // namespace

void Log::Line(std::string_view event, std::initializer_list<LogField> fields) const {
  std::string line;
  if (json_) {
    Json json = {{"time", Now()}, {"event", event}};
    for (const auto& [key, value] : fields) json[std::string(key)] = value;
    line = Dump(json);
  } else {
    line = Now();
    line += ' ';
    line += event;
    for (const auto& [key, value] : fields) {
      const bool plain = !value.empty() && std::none_of(value.begin(), value.end(), [](char c) {
        return static_cast<unsigned char>(c) <= ' ' || c == '"' || c == '=';
      });
      line += ' ';
      line += key;
      line += '=';
      line += plain ? value : Dump(Json(value));
    }
  }
  line += '\n';
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace dsv4::server
