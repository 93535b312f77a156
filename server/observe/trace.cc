#include "server/observe/trace.h"

#include <cstdint>
#include <mutex>
#include <random>

namespace dsv4::server {

namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

bool IsHex(std::string_view text) { return text.find_first_not_of(kHexDigits) == std::string_view::npos; }

bool IsId(std::string_view text) { return IsHex(text) && text.find_first_not_of('0') != std::string_view::npos; }

}  // namespace

std::string RandomHex(int n) {
  static std::mutex mutex;
  static std::mt19937_64 random((static_cast<uint64_t>(std::random_device{}()) << 32) | std::random_device{}());
  std::string text;
  do {
    text.clear();
    const std::lock_guard lock(mutex);
    uint64_t bits = 0;
    for (int i = 0; i < n; ++i) {
      if (i % 16 == 0) bits = random();
      text += kHexDigits[(bits >> (4 * (i % 16))) & 15];
    }
  } while (!IsId(text));
  return text;
}

// version-trace_id-parent_id-flags; later versions may append more fields.
TraceContext ReadTraceParent(std::string_view header) {
  const bool sound = header.size() >= 55 && header[2] == '-' && header[35] == '-' && header[52] == '-' &&
                     IsHex(header.substr(0, 2)) && header.substr(0, 2) != "ff" && IsId(header.substr(3, 32)) &&
                     IsId(header.substr(36, 16)) && IsHex(header.substr(53, 2)) &&
                     (header.size() == 55 || (header.substr(0, 2) != "00" && header[55] == '-'));
  if (!sound) return {};
  return {.trace_id = std::string(header.substr(3, 32)),
          .span_id = RandomHex(16),
          .parent_id = std::string(header.substr(36, 16)),
          .sampled = (kHexDigits.find(header[54]) & 1) != 0};
}

TraceContext NewTrace() { return {.trace_id = RandomHex(32), .span_id = RandomHex(16), .parent_id = ""}; }

}  // namespace dsv4::server
