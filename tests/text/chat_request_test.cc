#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "dsv4/chat.h"
#include "text/support.h"

namespace dsv4 {
namespace {

TEST(ChatRequest, Defaults) {
  const auto request = ParseChatRequest(R"({"messages": [], "model": "x", "temperature": 0.5, "stream": true})");
  ASSERT_TRUE(request.ok()) << request.status().message();
  EXPECT_FALSE(request->thinking);
  EXPECT_EQ(request->effort, ReasoningEffort::kDefault);
  EXPECT_TRUE(request->drop_thinking);
  EXPECT_TRUE(request->add_bos);
}

TEST(ChatRequest, ThinkingAndEffortHaveOtherNames) {
  const auto parse = [](const std::string& more) { return *ParseChatRequest(R"({"messages": [], )" + more + "}"); };
  EXPECT_TRUE(parse(R"("thinking": true)").thinking);
  EXPECT_TRUE(parse(R"("enable_thinking": true)").thinking);
  EXPECT_TRUE(parse(R"("thinking": {"type": "enabled"})").thinking);
  EXPECT_FALSE(parse(R"("thinking": {"type": "disabled"})").thinking);
  EXPECT_FALSE(parse(R"("thinking": true, "reasoning_effort": "none")").thinking);
  EXPECT_EQ(parse(R"("reasoning_effort": "max")").effort, ReasoningEffort::kMax);
  EXPECT_EQ(parse(R"("effort": "low")").effort, ReasoningEffort::kLow);
}

TEST(ChatRequest, Messages) {
  const auto request = ParseChatRequest(R"({"messages": [
      {"role": "assistant", "content": null, "reasoning_content": "r", "prefix": true,
       "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": "R"}]})");
  ASSERT_TRUE(request.ok()) << request.status().message();
  const Message& assistant = request->messages[0];
  EXPECT_EQ(assistant.role, Role::kAssistant);
  EXPECT_EQ(assistant.reasoning_content, "r");
  EXPECT_TRUE(assistant.wo_eos);
  EXPECT_EQ(assistant.tool_calls[0].id, "1");
  EXPECT_EQ(assistant.tool_calls[0].arguments, "{\"a\":1}");
  EXPECT_EQ(request->messages[1].tool_call_id, "1");
}

TEST(ChatRequest, WrittenIsReadAsTheSame) {
  const std::string json = R"({"messages": [
{"role": "system", "content": "S \"quoted\"", "tools": [{"type": "function", "function": {"name": "g"}}]},
{"role": "user", "content": "two\nlines \u0001 é", "task": "title"},
{"role": "assistant", "reasoning_content": "r", "content": "c", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]},
{"role": "tool", "tool_call_id": "1", "content": "R"},
{"role": "user", "content": [{"type": "text", "text": "t"}, {"type": "tool_result", "tool_call_id": "1", "content": "x"}]},
{"role": "assistant", "content": "half", "prefix": true}
], "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
"response_format": {"type": "json_object"}, "thinking": true, "effort": "max", "drop_thinking": false,
"add_default_bos_token": false})";
  const auto request = ParseChatRequest(json);
  ASSERT_TRUE(request.ok()) << request.status().message();
  const std::string written = ChatRequestToJson(*request);
  const auto again = ParseChatRequest(written);
  ASSERT_TRUE(again.ok()) << again.status().message() << written;
  EXPECT_EQ(ChatRequestToJson(*again), written);
  for (const char* part :
       {"S \\\"quoted\\\"", "two\\nlines \\u0001 é", "\"task\": \"title\"", "\"r\"", "\"name\": \"g\"", "{\\\"a\\\":1}",
        "\"tool_call_id\": \"1\"", "\"type\": \"tool_result\"", "\"prefix\": true", "\"type\": \"json_object\"",
        "\"thinking\": true", "\"effort\": \"max\"", "\"drop_thinking\": false", "\"add_default_bos_token\": false"}) {
    EXPECT_THAT(written, testing::HasSubstr(part));
  }
  EXPECT_EQ(again->messages.size(), 6u);
  EXPECT_EQ(again->messages[1].task, ChatTask::kTitle);
  EXPECT_EQ(again->messages[4].content_blocks[1].text, "x");
}

TEST(ChatRequest, RefusalsNameTheField) {
  const auto refused = [](const std::string& json, const std::string& message) {
    const auto request = ParseChatRequest(json);
    ASSERT_FALSE(request.ok()) << json;
    EXPECT_EQ(request.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(request.status().message(), message);
  };
  const auto message = [&](const std::string& fields, const std::string& error) {
    refused(R"({"messages": [{)" + fields + "}]}", error);
  };
  const auto more = [&](const std::string& fields, const std::string& error) {
    refused(R"({"messages": [], )" + fields + "}", error);
  };
  refused("", "not valid JSON: the text ends before a value at byte 0");
  refused("[]", "expected a JSON object, found an array");
  refused("{}", "messages is missing");
  refused(R"({"messages": "hi"})", "messages: expected an array, found \"hi\"");
  refused(R"({"messages": [1]})", "messages[0]: expected an object, found an integer");
  message("", "messages[0].role is missing");
  message(R"("role": "robot")",
          "messages[0].role: expected one of system, user, assistant, tool, latest_reminder, "
          "developer, found \"robot\"");
  message(R"("role": 1)",
          "messages[0].role: expected one of system, user, assistant, tool, latest_reminder, developer, "
          "found an integer");
  message(R"("role": "user", "content": 1)",
          "messages[0].content: expected a string or an array of parts, found an integer");
  message(R"("role": "user", "content": [1])",
          "messages[0].content[0]: expected a string or an object with a \"type\"");
  message(R"("role": "user", "content": [{"type": "text", "text": 1}])",
          "messages[0].content[0].text: expected a string, found an integer");
  message(R"("role": "user", "content_blocks": {})", "messages[0].content_blocks: expected an array, found an object");
  message(R"("role": "assistant", "reasoning_content": [])",
          "messages[0].reasoning_content: expected a string, found an array");
  message(R"("role": "assistant", "tool_calls": {})", "messages[0].tool_calls: expected an array, found an object");
  message(R"("role": "assistant", "tool_calls": [{"function": {}}])",
          "messages[0].tool_calls[0]: expected {\"function\": {\"name\": ..., \"arguments\": ...}}");
  message(R"("role": "user", "task": "dance")",
          "messages[0].task: expected one of action, query, authority, domain, title, read_url, found \"dance\"");
  message(R"("role": "assistant", "wo_eos": 1)", "messages[0].wo_eos: expected true or false, found an integer");
  message(R"("role": "system", "tools": [{"name": "f"}])",
          "messages[0].tools[0]: expected {\"type\": \"function\", \"function\": {...}}");
  message(R"("role": "system", "response_format": "json")",
          "messages[0].response_format: expected an object, found \"json\"");
  more(R"("tools": {})", "tools: expected an array, found an object");
  more(R"("thinking": "yes")", "thinking: expected true or false, found \"yes\"");
  more(R"("effort": "medium")", "effort: expected one of low, high, max, found \"medium\"");
  more(R"("drop_thinking": 0)", "drop_thinking: expected true or false, found an integer");
}

TEST(ChatDialect, Names) {
  EXPECT_EQ(ChatDialectName(ChatDialect::kV4Preview), "v4");
  EXPECT_EQ(ChatDialectName(ChatDialect::kV40731), "v4-0731");
  EXPECT_EQ(*ParseChatDialect("v4"), ChatDialect::kV4Preview);
  EXPECT_EQ(*ParseChatDialect("v4-0731"), ChatDialect::kV40731);
  EXPECT_FALSE(ParseChatDialect("v3").ok());
}

TEST(ChatDialect, IsFoundInTheShippedEncoder) {
  const test::TempDir temp;
  const std::filesystem::path& dir = temp.path();
  EXPECT_EQ(DetectDialect(dir), ChatDialect::kV4Preview);
  std::filesystem::create_directories(dir / "encoding");
  const auto write = [&](std::string_view text) { std::ofstream(dir / "encoding/encoding_dsv4.py") << text; };
  write("REASONING_EFFORT_MAX = '...'\n");
  EXPECT_EQ(DetectDialect(dir), ChatDialect::kV4Preview);
  write("nothing known\n");
  EXPECT_EQ(DetectDialect(dir), ChatDialect::kV4Preview);
  write("DEFAULT_REASONING_EFFORT = \"low\"\nREASONING_EFFORT_PROMPTS = {}\n");
  EXPECT_EQ(DetectDialect(dir), ChatDialect::kV40731);
  write("x = 'Reasoning Effort: Beyond maximum'\n");
  EXPECT_EQ(DetectDialect(dir), ChatDialect::kV40731);
}

}  // namespace
}  // namespace dsv4
