// Chat requests. A text is refused with one line or rendered. Printed JSON parses, and prints the same text again.
#include <cstdint>
#include <string>
#include <string_view>

#include "dsv4/chat.h"
#include "fuzz/require.h"
#include "text/json_value.h"
#include "text/utf8.h"

namespace {

using dsv4::fuzz::Require;

void RequireMessage(const dsv4::Status& status) {
  Require(!status.message().empty() && status.message().find('\n') == std::string::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto value = dsv4::ParseJsonValue(text);
  if (value.ok()) {
    const std::string printed = dsv4::DumpJson(*value);
    const auto again = dsv4::ParseJsonValue(printed);
    Require(again.ok() && dsv4::DumpJson(*again) == printed);
  } else {
    RequireMessage(value.status());
  }
  const auto request = dsv4::ParseChatRequest(text);
  if (!request.ok()) {
    RequireMessage(request.status());
    return 0;
  }
  for (const dsv4::ChatDialect dialect : {dsv4::ChatDialect::kV4Preview, dsv4::ChatDialect::kV40731}) {
    const auto prompt = dsv4::RenderPrompt(*request, dialect);
    if (prompt.ok()) {
      Require(dsv4::ValidUtf8Prefix(*prompt) == prompt->size());
    } else {
      Require(!prompt.status().message().empty());
    }
    const auto served = dsv4::RenderServedPrompt(*request, dialect);
    Require(served.ok() ? dsv4::ValidUtf8Prefix(served->text) == served->text.size()
                        : !served.status().message().empty());
  }
  return 0;
}
