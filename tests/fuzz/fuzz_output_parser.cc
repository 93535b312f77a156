// Output parsing. For any text and any splits, deltas, incremental and whole parse agree. Arguments are JSON objects.
// If the strict parser accepts a text, the tolerant parser returns the same, except newlines at the edges.
//   byte 0: thinking, and the seed of the splits;  then the text
#include <cstdint>
#include <string>
#include <string_view>

#include "dsv4/json_text.h"
#include "dsv4/output_parser.h"
#include "dsv4/stop_strings.h"
#include "fuzz/require.h"
#include "text/json_value.h"
#include "text/utf8.h"

namespace {

using dsv4::fuzz::Require;

bool Same(const dsv4::ParsedMessage& a, const dsv4::ParsedMessage& b) {
  return dsv4::MessageToJson(a) == dsv4::MessageToJson(b) && a.cut_off == b.cut_off;
}

void Take(const std::vector<dsv4::OutputDelta>& deltas, dsv4::ParsedMessage* message) {
  using Kind = dsv4::OutputDelta::Kind;
  for (const dsv4::OutputDelta& delta : deltas) {
    if (delta.kind == Kind::kReasoning) message->reasoning_content += delta.text;
    if (delta.kind == Kind::kContent) message->content += delta.text;
    if (delta.kind == Kind::kToolCallBegin)
      message->tool_calls.push_back({.id = "", .name = delta.text, .arguments = ""});
    if (delta.kind == Kind::kToolCallArguments) {
      message->tool_calls.at(static_cast<size_t>(delta.index)).arguments += delta.text;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const bool thinking = data[0] % 2 == 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const dsv4::ParsedMessage whole = dsv4::ParseOutput(text, thinking);

  dsv4::OutputParser parser(thinking);
  dsv4::ParsedMessage collected;
  uint32_t random = data[0] + 1u;
  for (size_t at = 0; at < text.size();) {
    random = random * 1664525u + 1013904223u;
    const size_t n = 1 + (random >> 16) % 24;
    Take(parser.Push(std::string_view(text).substr(at, n)), &collected);
    at += n;
  }
  Take(parser.Finish(), &collected);
  Require(parser.done());
  collected.cut_off = parser.message().cut_off;
  Require(Same(parser.message(), whole) && Same(collected, whole));

  if (dsv4::ValidUtf8Prefix(text) == text.size()) {
    for (const dsv4::ToolCall& call : whole.tool_calls) {
      const auto arguments = dsv4::ParseJsonValue(call.arguments, {.python_constants = false});
      // A value near the depth limit can exceed it inside the arguments object.
      Require(arguments.ok() ? arguments->is_object()
                             : arguments.status().message().find("nested deeper") != std::string::npos);
    }
  }
  const auto strict = dsv4::ParseOutputStrict(text, thinking);
  if (strict.ok() && strict->tool_calls.empty()) {
    const auto trim = [](std::string s) {
      s.erase(0, s.find_first_not_of('\n'));
      return s.erase(s.find_last_not_of('\n') + 1);
    };
    Require(trim(strict->content) == trim(whole.content) &&
            trim(strict->reasoning_content) == trim(whole.reasoning_content));
  }

  // A substring of the text, as a stop string, is found at its first occurrence.
  const std::string stop = text.substr(text.size() / 2, 1 + data[0] % 7);
  if (!stop.empty()) {
    auto matcher = dsv4::StopMatcher::Create({stop});
    std::string out;
    for (const char c : text) out += matcher->Push(std::string_view(&c, 1));
    Require(matcher->stopped() && out == text.substr(0, text.find(stop)));
  }
  return 0;
}
