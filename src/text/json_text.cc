#include "dsv4/json_text.h"

#include <charconv>
#include <limits>

#include "base/str.h"
#include "text/json_value.h"
#include "text/utf8.h"

namespace dsv4 {

namespace {

constexpr int64_t kMaxTokenId = std::numeric_limits<TokenId>::max();

}  // namespace

std::string JsonQuote(std::string_view text) {
  std::string out = "\"";
  AppendJsonEscaped(RepairUtf8(text), &out);
  out.push_back('"');
  return out;
}

Result<std::string> ParseJsonString(std::string_view json) {
  DSV4_ASSIGN_OR_RETURN(const JsonValue value, ParseJsonValue(json));
  if (!value.is_string()) return InvalidArgument(StrCat("expected a JSON string, found ", JsonKindName(value)));
  return value.text;
}

std::string TokenIdsToJson(std::span<const TokenId> ids) {
  std::string out = "[";
  for (const TokenId id : ids) out += StrCat(out.size() > 1 ? ", " : "", id);
  out.push_back(']');
  return out;
}

Result<std::vector<TokenId>> ParseTokenIdsJson(std::string_view json) {
  DSV4_ASSIGN_OR_RETURN(const JsonValue value, ParseJsonValue(json));
  if (!value.is_array())
    return InvalidArgument(StrCat("expected a JSON array of token ids, found ", JsonKindName(value)));
  std::vector<TokenId> ids;
  for (size_t i = 0; i < value.items.size(); ++i) {
    const int64_t id = JsonToIndex(value.items[i]);
    if (id < 0 || id > kMaxTokenId) return InvalidArgument(StrCat("element ", i, " of the array is not a token id"));
    ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

Result<std::vector<TokenId>> ParseTokenIdList(std::string_view text) {
  static constexpr std::string_view kSeparators = " \t\r\n\v\f,";
  std::vector<TokenId> ids;
  const size_t first = text.find_first_not_of(kSeparators), last = text.find_last_not_of(kSeparators);
  if (first != text.npos && last > first && text[first] == '[' && text[last] == ']')
    text = text.substr(first + 1, last - first - 1);
  for (size_t begin = text.find_first_not_of(kSeparators); begin != text.npos;) {
    const size_t end = std::min(text.find_first_of(kSeparators, begin), text.size());
    const std::string_view piece = text.substr(begin, end - begin);
    TokenId id = -1;
    const auto result = std::from_chars(piece.data(), piece.data() + piece.size(), id);
    if (result.ec != std::errc() || result.ptr != piece.data() + piece.size() || id < 0) {
      return InvalidArgument(StrCat(JsonQuote(piece.substr(0, 40)), " is not a token id"));
    }
    ids.push_back(id);
    begin = text.find_first_not_of(kSeparators, end);
  }
  return ids;
}

std::string MessageToJson(const ParsedMessage& message) {
  std::string out = StrCat("{\"reasoning_content\": ", JsonQuote(message.reasoning_content),
                           ", \"content\": ", JsonQuote(message.content), ", \"tool_calls\": [");
  for (const ToolCall& call : message.tool_calls) {
    if (&call != message.tool_calls.data()) out += ", ";
    out += "{";
    if (!call.id.empty()) out += StrCat("\"id\": ", JsonQuote(call.id), ", ");
    out += StrCat("\"type\": \"function\", \"function\": {\"name\": ", JsonQuote(call.name),
                  ", \"arguments\": ", JsonQuote(call.arguments), "}}");
  }
  return out + "]}";
}

Result<CompletionLine> ParseCompletionLine(std::string_view json) {
  DSV4_ASSIGN_OR_RETURN(const JsonValue value, ParseJsonValue(json));
  if (!value.is_object()) return InvalidArgument(StrCat("expected a JSON object, found ", JsonKindName(value)));
  const JsonValue* completion = value.Find("completion");
  if (completion == nullptr || !completion->is_string()) return InvalidArgument("completion: a string is required");
  CompletionLine line{.completion = completion->text};
  if (const JsonValue* thinking = value.Find("thinking"); thinking != nullptr && !thinking->is_null()) {
    if (!thinking->is_bool())
      return InvalidArgument(StrCat("thinking: expected true or false, found ", JsonKindName(*thinking)));
    line.thinking = thinking->is(JsonValue::Kind::kTrue);
  }
  return line;
}

}  // namespace dsv4
