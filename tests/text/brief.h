// A parsed message in one line, for comparisons.
#pragma once

#include <string>

#include "dsv4/chat.h"
#include "dsv4/output_parser.h"

namespace dsv4::test {

inline const std::string kEos = "<｜end▁of▁sentence｜>";

// Reasoning|content|name(arguments)name(arguments), with "!" at the end when cut off.
inline std::string Brief(const ParsedMessage& m) {
  std::string out = m.reasoning_content + "|" + m.content + "|";
  for (const ToolCall& call : m.tool_calls) out += call.name + "(" + call.arguments + ")";
  return out + (m.cut_off ? "!" : "");
}

}  // namespace dsv4::test
