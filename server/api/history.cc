#include "server/api/history.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

namespace dsv4::server {

namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::string TypeOf(const Json& part) {
  const auto type = part.is_object() ? part.find("type") : part.end();
  return part.is_object() && type != part.end() && type->is_string() ? type->get<std::string>() : "";
}

// Returns the text of a reasoning part, which is a text, or a part or list of parts with texts.
std::string ReasoningOf(const Json& part) {
  if (part.is_string()) return part.get<std::string>();
  std::string all;
  for (size_t i = 0; part.is_array() && i < part.size(); ++i) all += ReasoningOf(part[i]);
  if (!part.is_object()) return all;
  for (const char* name : {"thinking", "text", "reasoning", "reasoning_content", "content", "summary"}) {
    const auto value = part.find(name);
    if (value != part.end() && all.empty()) all = ReasoningOf(*value);
  }
  return all;
}

// Clients send the same reasoning in several forms.
void AddReasoning(const std::string& text, std::string* all) {
  if (text.empty() || text == *all) return;
  *all += (all->empty() ? "" : "\n\n") + text;
}

std::string Stripped(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) - begin + 1));
}

// Removes reasoning in tags from the start of a text and returns it. A reply that was cut has no closing tag.
std::string TakeThinkTags(std::string* text) {
  constexpr std::string_view kOpen = "<think>", kClose = "</think>";
  std::string reasoning;
  std::string_view rest = *text;
  while (true) {
    const size_t begin = rest.find_first_not_of(kSpace);
    if (begin == std::string_view::npos || !rest.substr(begin).starts_with(kOpen)) break;
    const std::string_view inner = rest.substr(begin + kOpen.size());
    const size_t end = inner.find(kClose);
    AddReasoning(Stripped(inner.substr(0, end)), &reasoning);
    rest = end == std::string_view::npos ? std::string_view() : inner.substr(end + kClose.size());
    rest.remove_prefix(std::min(rest.find_first_not_of(kSpace), rest.size()));
  }
  *text = std::string(rest);
  return reasoning;
}

// Moves tags at the start of the content to the message's reasoning.
void MoveThinkTags(Json* message) {
  if (!message->contains("content")) return;
  Json& content = (*message)["content"];
  const bool parts = content.is_array() && !content.empty() && TypeOf(content[0]) == "text";
  Json* const first = parts ? &content[0]["text"] : &content;
  if (!first->is_string()) return;
  const std::string taken = TakeThinkTags(&first->get_ref<std::string&>());
  if (parts && first->get_ref<const std::string&>().empty() && content.size() > 1) content.erase(0);
  if (taken.empty()) return;
  std::string reasoning = message->value("reasoning_content", std::string());
  AddReasoning(taken, &reasoning);
  (*message)["reasoning_content"] = reasoning;
}

bool HasCalls(const Json& message) {
  const auto calls = message.find("tool_calls");
  return calls != message.end() && !calls->empty();
}

bool IsEmptyReply(const Json& message) {
  if (message["role"] != "assistant" || HasCalls(message) || !message.value("reasoning_content", std::string()).empty())
    return false;
  const auto content = message.find("content");
  if (content == message.end() || content->empty()) return true;
  const auto blank = [](const Json& text) {
    return text.is_string() && text.get_ref<const std::string&>().find_first_not_of(kSpace) == std::string::npos;
  };
  return blank(*content) ||
         (content->is_array() && std::all_of(content->begin(), content->end(), [&](const Json& part) {
            return part.is_object() && blank(part.value("text", Json()));
          }));
}

}  // namespace

bool IsReasoningPart(const Json& part) {
  const std::string type = TypeOf(part);
  return type == "thinking" || type == "redacted_thinking" || type.starts_with("reasoning");
}

std::string ReadMessageReasoning(const Fields& message) {
  std::string reasoning;
  for (const char* name : {"reasoning_content", "reasoning", "reasoning_details", "thinking_blocks"}) {
    const Json* value = message.Get(name);
    if (value != nullptr && reasoning.empty()) reasoning = ReasoningOf(*value);
  }
  const Json* content = message.Get("content");
  if (content == nullptr || !content->is_array()) return reasoning;
  Json parts = Json::array();
  std::copy_if(content->begin(), content->end(), std::back_inserter(parts), IsReasoningPart);
  AddReasoning(ReasoningOf(parts), &reasoning);
  return reasoning;
}

std::string ReadArguments(const Json* arguments) {
  if (arguments == nullptr || arguments->is_null()) return "{}";
  if (!arguments->is_string()) return Dump(*arguments);
  std::string text = arguments->get<std::string>();
  return text.find_first_not_of(kSpace) == std::string::npos ? "{}" : text;
}

void FinishHistory(const HistoryEnd& end, ChatInput* input) {
  Json& messages = input->messages;
  for (Json& message : messages) {
    if (message["role"] == "assistant") MoveThinkTags(&message);
  }
  while (!end.continues && !messages.empty() && IsEmptyReply(messages.back())) messages.erase(messages.size() - 1);
  if (messages.empty()) Refuse(end.param, end.param + " is empty: there is nothing to answer");
  const Json& last = messages.back();
  const bool by_assistant = last["role"] == "assistant";
  if (by_assistant && HasCalls(last) && !end.missing_results.empty() && !end.continues.value_or(false))
    Refuse(end.param, end.missing_results);
  if (!by_assistant && end.continues.value_or(false)) {
    Refuse(end.param, "only an assistant message can be continued, and the last message is not one");
  }
  input->continue_last = end.continues.value_or(by_assistant && !end.whole_reply);
}

}  // namespace dsv4::server
