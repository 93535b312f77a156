// The strict parser: it accepts the completions that the official encoder accepts.
#include <algorithm>
#include <initializer_list>
#include <set>

#include "base/str.h"
#include "dsv4/output_parser.h"
#include "text/format.h"
#include "text/json_value.h"

namespace dsv4 {

namespace {

using namespace format;

constexpr std::string_view kBlockMark = "\n\n<｜DSML｜tool_calls";
constexpr std::string_view kInvokeMark = "<｜DSML｜invoke";
constexpr std::string_view kInvokeEndMark = "</｜DSML｜invoke";
constexpr std::string_view kParameterMark = "<｜DSML｜parameter";
constexpr std::string_view kParameterEndMark = "/｜DSML｜parameter";

class StrictParser {
 public:
  explicit StrictParser(std::string_view text) : text_(text) {}

  Result<ParsedMessage> Parse(bool thinking) {
    ParsedMessage message;
    std::string_view stop;
    if (thinking) {
      DSV4_ASSIGN_OR_RETURN(message.reasoning_content, ReadUntil({kEndThink, kBlockMark}, &stop));
      if (stop != kEndThink) return Error("tool calls before </think>");
    }
    DSV4_ASSIGN_OR_RETURN(message.content, ReadUntil({kEos, kBlockMark}, &stop));
    if (stop == kBlockMark) {
      DSV4_RETURN_IF_ERROR(ReadCalls(&message.tool_calls));
      if (text_.substr(at_) == kEos) at_ = text_.size();
    }
    if (at_ != text_.size()) return Error("text after the end");
    for (const std::string_view mark : {kBos, kEos, kThink, kEndThink, kDsml}) {
      for (const std::string* part : {&message.reasoning_content, &message.content}) {
        if (part->find(mark) != std::string::npos) {
          return InvalidArgument(StrCat(mark, " inside the ", part == &message.content ? "content" : "reasoning"));
        }
      }
    }
    return message;
  }

 private:
  Status Error(std::string_view what) const { return InvalidArgument(StrCat(what, " (byte ", at_, ")")); }

  // Reads the text up to the first of the stops, and that stop into *stop.
  Result<std::string> ReadUntil(std::initializer_list<std::string_view> stops, std::string_view* stop) {
    size_t first = std::string_view::npos;
    for (const std::string_view candidate : stops) {
      const size_t found = text_.find(candidate, at_);
      if (found >= first) continue;
      first = found;
      *stop = candidate;
    }
    if (first == std::string_view::npos) {
      std::string names;
      for (const std::string_view candidate : stops) {
        names += StrCat(names.empty() ? "" : " or ", candidate.substr(candidate.find_first_not_of('\n')));
      }
      return Error(StrCat("the text ends without ", names));
    }
    std::string read(text_.substr(at_, first - at_));
    at_ = first + stop->size();
    return read;
  }

  // After a tag's name only ">\n" may come before the next tag.
  Status ReadTagEnd(std::initializer_list<std::string_view> stops, std::string_view* stop) {
    const size_t begin = at_;
    DSV4_ASSIGN_OR_RETURN(const std::string between, ReadUntil(stops, stop));
    if (between == ">\n") return {};
    at_ = begin;
    return Error("expected \">\" and one newline before the next tag");
  }

  Status ReadCalls(std::vector<ToolCall>* calls) {
    std::string_view stop;
    while (true) {
      DSV4_RETURN_IF_ERROR(ReadTagEnd({kInvokeMark, kCallsEnd}, &stop));
      if (stop == kCallsEnd) return {};
      DSV4_RETURN_IF_ERROR(ReadCall(&calls->emplace_back()));
    }
  }

  Status ReadCall(ToolCall* call) {
    std::string_view stop;
    const size_t begin = at_;
    DSV4_ASSIGN_OR_RETURN(const std::string head, ReadUntil({kParameterMark, kInvokeEndMark}, &stop));
    std::string_view name = head;
    name.remove_prefix(std::min(name.find_first_not_of(" \t\r\n\v\f"), name.size()));
    if (name.ends_with("\n\n")) name.remove_suffix(1);
    if (name.size() < 9 || !name.starts_with("name=\"") || !name.ends_with("\">\n")) {
      at_ = begin;
      return Error("expected name=\"...\"> and a newline in the tag of a call");
    }
    call->name = name.substr(6, name.size() - 9);
    std::set<std::string> keys;
    call->arguments.push_back('{');
    while (stop == kParameterMark) {
      DSV4_RETURN_IF_ERROR(ReadParameter(&keys, &call->arguments));
      DSV4_RETURN_IF_ERROR(ReadTagEnd({kParameterMark, kInvokeEndMark}, &stop));
    }
    call->arguments.push_back('}');
    return {};
  }

  // name="K" string="true|false">V<   with the shortest K
  Status ReadParameter(std::set<std::string>* keys, std::string* arguments) {
    const size_t begin = at_;
    std::string_view stop;
    DSV4_ASSIGN_OR_RETURN(const std::string read, ReadUntil({kParameterEndMark}, &stop));
    static constexpr std::string_view kHead = " name=\"", kTrue = "\" string=\"true\">",
                                      kFalse = "\" string=\"false\">";
    std::string_view rest = read;
    const bool framed = rest.starts_with(kHead) && rest.ends_with('<');
    if (framed) rest = rest.substr(kHead.size(), rest.size() - kHead.size() - 1);
    const size_t key_end = std::min(rest.find(kTrue), rest.find(kFalse));
    if (!framed || key_end == rest.npos) {
      at_ = begin;
      return Error("expected name=\"...\" string=\"true|false\">...< in the tag of a parameter");
    }
    const std::string key(rest.substr(0, key_end));
    const bool is_string = rest.substr(key_end).starts_with(kTrue);
    const std::string_view value = rest.substr(key_end + (is_string ? kTrue : kFalse).size());
    if (!keys->insert(key).second) {
      at_ = begin;
      return Error(StrCat("parameter \"", key, "\" occurs twice"));
    }
    *arguments += keys->size() > 1 ? ", \"" : "\"";
    AppendJsonEscaped(key, arguments);
    *arguments += is_string ? "\": \"" : "\": ";
    if (is_string) {
      AppendJsonEscaped(value, arguments);
      *arguments += "\"";
    } else {
      *arguments += value;
    }
    return {};
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

Result<ParsedMessage> ParseOutputStrict(std::string_view text, bool thinking) {
  return StrictParser(text).Parse(thinking);
}

}  // namespace dsv4
