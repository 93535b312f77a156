#include "server/api/history.h"

#include <string>

#include "gtest/gtest.h"
#include "server/base/json.h"

namespace dsv4::server {
namespace {

std::string ReasoningIn(const char* message) {
  const JsonDocument document = ParseJson(message);
  return ReadMessageReasoning(Fields(document.root(), "messages[0]"));
}

TEST(History, ReasoningIsReadInTheFormOfEveryService) {
  for (
      const char* message : {
          R"({"reasoning_content": "I check."})",
          R"({"reasoning": "I check."})",
          R"({"reasoning_content": null, "reasoning": "", "reasoning_details": [
               {"type": "reasoning.text", "text": "I ", "index": 0},
               {"type": "reasoning.text", "text": "check.", "index": 0},
               {"type": "reasoning.encrypted", "data": "xyz"}]})",
          R"({"reasoning_details": [{"type": "reasoning.summary", "summary": "I check."}]})",
          R"({"reasoning_content": "I check.", "reasoning_details": [{"type": "reasoning.text", "text": "I check."}]})",
          R"({"thinking_blocks": [{"type": "thinking", "thinking": "I check.", "signature": "s"}]})",
          R"({"content": [{"type": "thinking", "thinking": "I check."}, {"type": "text", "text": "Soon."}]})",
          R"({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "I check."}]}]})",
          R"({"content": [{"type": "reasoning", "text": "I check."}, "Soon."]})",
          R"({"content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "I check."}]}]})",
          R"({"reasoning": "I check.", "content": [{"type": "thinking", "thinking": "I check."}]})",
      }) {
    EXPECT_EQ(ReasoningIn(message), "I check.") << message;
  }
  EXPECT_EQ(ReasoningIn(R"({"reasoning": "One.", "content": [{"type": "thinking", "thinking": "Two."}]})"),
            "One.\n\nTwo.");
  for (const char* message : {R"({"content": "Soon."})", R"({"reasoning": {"effort": "high"}})",
                              R"({"content": [{"type": "text", "text": "Soon."}, {"type": "redacted_thinking"}]})",
                              R"({"reasoning_details": [1, null, [], {"type": "reasoning.text", "text": 5}]})"}) {
    EXPECT_EQ(ReasoningIn(message), "") << message;
  }
}

// Reasoning and content of an assistant message, separated by a bar.
std::string Split(const Json& content, const Json& reasoning = nullptr) {
  ChatInput input;
  input.messages.push_back({{"role", "assistant"}, {"content", content}});
  if (!reasoning.is_null()) input.messages[0]["reasoning_content"] = reasoning;
  input.messages.push_back({{"role", "user"}, {"content", "<think>mine</think>"}});
  FinishHistory({.continues = std::nullopt, .whole_reply = false, .param = "messages", .missing_results = ""}, &input);
  EXPECT_EQ(input.messages[1]["content"], "<think>mine</think>");  // only the assistant's tags are reasoning
  const Json& m = input.messages[0];
  return m.value("reasoning_content", "") + "|" +
         (m["content"].is_string() ? m["content"].get<std::string>() : Dump(m["content"]));
}

TEST(History, ThinkTagsAtTheStartAreReasoning) {
  EXPECT_EQ(Split("<think>I check.</think>Soon."), "I check.|Soon.");
  EXPECT_EQ(Split("\n<think>\nI check.\n</think>\n\nSoon.\n"), "I check.|Soon.\n");
  EXPECT_EQ(Split("<think>\n\n</think>\n\nSoon."), "|Soon.");
  EXPECT_EQ(Split("<think>One.</think>\n<think>Two.</think>Soon."), "One.\n\nTwo.|Soon.");
  EXPECT_EQ(Split("<think>It was cut"), "It was cut|");
  EXPECT_EQ(Split("<think>I check.</think>Soon.", "I check."), "I check.|Soon.");
  EXPECT_EQ(Split("<think>Two.</think>Soon.", "One."), "One.\n\nTwo.|Soon.");
  EXPECT_EQ(Split("The tag <think> opens.</think>"), "|The tag <think> opens.</think>");
  EXPECT_EQ(Split("  Soon."), "|  Soon.");
  EXPECT_EQ(Split(nullptr), "|null");
  const auto text = [](const char* t) { return Json{{"type", "text"}, {"text", t}}; };
  EXPECT_EQ(Split(Json::array({text("<think>I check.</think>"), text("Soon.")})),
            "I check.|" + Dump(Json::array({text("Soon.")})));
  EXPECT_EQ(Split(Json::array({text("<think>I check.</think>Soon.")})),
            "I check.|" + Dump(Json::array({text("Soon.")})));
}

// The time is linear in the number of tags.
TEST(History, ManyTags) {
  std::string content = "<think>b</think>";
  while (content.size() < size_t{4} << 20) content += "<think>a</think>";
  EXPECT_EQ(Split(content + "c").size(), content.size() / 16 * 3);
}

ChatInput Ended(const Json& messages, const HistoryEnd& end) {
  ChatInput input;
  input.messages = messages;
  FinishHistory(end, &input);
  return input;
}

TEST(History, ALastAssistantMessageIsContinued) {
  const Json user = {{"role", "user"}, {"content", "hi"}}, half = {{"role", "assistant"}, {"content", "Hel"}};
  const HistoryEnd end{
      .continues = std::nullopt, .whole_reply = false, .param = "input", .missing_results = "no results"};
  EXPECT_FALSE(Ended(Json::array({user}), end).continue_last);
  EXPECT_TRUE(Ended(Json::array({user, half}), end).continue_last);
  HistoryEnd another = end;
  another.continues = false;
  EXPECT_FALSE(Ended(Json::array({user, half}), another).continue_last);
  another.continues = true;
  EXPECT_TRUE(Ended(Json::array({user, half}), another).continue_last);
  EXPECT_THROW(Ended(Json::array({user}), another), ApiError);
  // A reply that must be JSON or a call is another turn, unless the request says otherwise.
  another.whole_reply = true;
  EXPECT_TRUE(Ended(Json::array({user, half}), another).continue_last);
  another.continues = std::nullopt;
  EXPECT_FALSE(Ended(Json::array({user, half}), another).continue_last);
}

TEST(History, EmptyRepliesAtTheEndAreLeftOut) {
  const Json user = {{"role", "user"}, {"content", "hi"}};
  const HistoryEnd end{
      .continues = std::nullopt, .whole_reply = false, .param = "input", .missing_results = "no results"};
  for (const Json& content : {Json(""), Json(nullptr), Json::array(), Json::array({{{"type", "text"}, {"text", ""}}}),
                              Json("<think>\n"), Json(" \n")}) {
    const Json empty = {{"role", "assistant"}, {"content", content}};
    const ChatInput input = Ended(Json::array({user, empty, empty}), end);
    EXPECT_EQ(input.messages.size(), 1U) << content;
    EXPECT_FALSE(input.continue_last) << content;
    EXPECT_EQ(Ended(Json::array({empty, user}), end).messages.size(), 2U) << content;
    EXPECT_THROW(Ended(Json::array({empty}), end), ApiError) << content;
  }
  const Json thought = {{"role", "assistant"}, {"content", ""}, {"reasoning_content", "Hm"}};
  EXPECT_EQ(Ended(Json::array({user, thought}), end).messages.size(), 2U);
}

TEST(History, CallsWithoutResultsAreNamed) {
  const Json user = {{"role", "user"}, {"content", "hi"}};
  const Json call = {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({{{"id", "a"}}})}};
  const Json result = {{"role", "tool"}, {"tool_call_id", "a"}, {"content", "noon"}};
  HistoryEnd end{.continues = std::nullopt, .whole_reply = false, .param = "input", .missing_results = "no results"};
  try {
    Ended(Json::array({user, call}), end);
    FAIL() << "was taken";
  } catch (const ApiError& error) {
    EXPECT_STREQ(error.what(), "no results");
    EXPECT_EQ(error.param, "input");
  }
  EXPECT_FALSE(Ended(Json::array({user, call, result}), end).continue_last);
  end.missing_results = "";
  EXPECT_TRUE(Ended(Json::array({user, call}), end).continue_last);
}

TEST(History, ArgumentsOfCallsMayHaveAnyForm) {
  EXPECT_EQ(ReadArguments(nullptr), "{}");
  for (const auto& [given, text] : {std::pair<Json, std::string>{nullptr, "{}"},
                                    {"", "{}"},
                                    {" \n", "{}"},
                                    {R"({"a": 1})", R"({"a": 1})"},
                                    {"not JSON", "not JSON"},
                                    {{{"a", 1}}, R"({"a":1})"},
                                    {Json::array({1, "b"}), R"([1,"b"])"},
                                    {5, "5"}}) {
    EXPECT_EQ(ReadArguments(&given), text);
  }
}

}  // namespace
}  // namespace dsv4::server
