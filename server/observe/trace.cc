#include "server/observe/trace.h"

#include "server/base/random.h"

namespace dsv4::server {

namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

bool IsHex(std::string_view text) { return text.find_first_not_of(kHexDigits) == std::string_view::npos; }

bool IsId(std::string_view text) { return IsHex(text) && text.find_first_not_of('0') != std::string_view::npos; }

}  // namespace

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
