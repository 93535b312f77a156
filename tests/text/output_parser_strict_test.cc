#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "dsv4/chat.h"
#include "dsv4/output_parser.h"
#include "text/brief.h"

namespace dsv4 {
namespace {

using test::Brief;
using test::kEos;
using ::testing::HasSubstr;

const std::string kBegin = "\n\n<｜DSML｜tool_calls>\n";
const std::string kEnd = "</｜DSML｜tool_calls>";
const std::string kCall =
    "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"k\" string=\"true\">v</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n";

void Accept(const std::string& text, bool thinking, const std::string& expected) {
  const auto message = ParseOutputStrict(text, thinking);
  ASSERT_TRUE(message.ok()) << text << ": " << message.status().message();
  EXPECT_EQ(Brief(*message), expected);
}

void Reject(const std::string& text, bool thinking, const std::string& error) {
  const auto message = ParseOutputStrict(text, thinking);
  ASSERT_FALSE(message.ok()) << text << ": " << Brief(*message);
  EXPECT_THAT(message.status().message(), HasSubstr(error)) << text;
}

TEST(StrictParser, Prose) {
  Accept("c" + kEos, false, "|c|");
  Accept("\n c \n" + kEos, false, "|\n c \n|");
  Accept("r</think>c" + kEos, true, "r|c|");
  Accept("\nr\n</think>\nc" + kEos, true, "\nr\n|\nc|");
  Accept("</think>" + kEos, true, "||");
  Reject("c", false, "the text ends without <｜end▁of▁sentence｜> or <｜DSML｜tool_calls (byte 0)");
  Reject("r" + kEos, true, "the text ends without </think>");
  Reject("r" + kBegin + kEnd + kEos, true, "tool calls before </think>");
  Reject("c" + kEos + "x", false, "text after the end");
  Reject("c" + kEos + kEos, false, "text after the end");
  Reject("r</think>c</think>" + kEos, true, "</think> inside the content");
  Reject("r<think></think>c" + kEos, true, "<think> inside the reasoning");
  Reject("<｜begin▁of▁sentence｜>" + kEos, false, "inside the content");
  Reject("a ｜DSML｜" + kEos, false, "｜DSML｜ inside the content");
}

TEST(StrictParser, Calls) {
  Accept("c" + kBegin + kCall + kEnd + kEos, false, "|c|f({\"k\": \"v\"})");
  Accept("c" + kBegin + kCall + kEnd, false, "|c|f({\"k\": \"v\"})");  // after a block EOS may be missing
  Accept("r</think>" + kBegin + kCall + kCall + kEnd + kEos, true, "r||f({\"k\": \"v\"})f({\"k\": \"v\"})");
  Accept(kBegin + kEnd + kEos, false, "||");
  Accept(kBegin + "<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n" + kEnd + kEos, false, "||f({})");
  Accept(kBegin + "<｜DSML｜invoke name=\"f\">\n\n</｜DSML｜invoke>\n" + kEnd + kEos, false, "||f({})");
  Reject("c\n<｜DSML｜tool_calls>\n" + kCall + kEnd + kEos, false, "｜DSML｜ inside the content");
  Reject(kBegin + kCall + kEnd + "x", false, "text after the end");
  Reject(kBegin + kCall, false, "the text ends without <｜DSML｜invoke or </｜DSML｜tool_calls>");
  Reject(kBegin + "\n" + kCall + kEnd + kEos, false, "expected \">\" and one newline");
  Reject(kBegin + "x" + kCall + kEnd + kEos, false, "expected \">\" and one newline");
  Reject(kBegin + "<｜DSML｜invoke name=\"f\">\n\n\n</｜DSML｜invoke>\n" + kEnd + kEos, false, "expected name=");
  Reject(kBegin + "<｜DSML｜invoke name=f>\n</｜DSML｜invoke>\n" + kEnd + kEos, false, "expected name=");
  Reject("\n\n<｜DSML｜ calls>\n" + kEos, false, "｜DSML｜ inside the content");          // V4.1
  Reject("\n\n<｜DSML｜function_calls>\n" + kEos, false, "｜DSML｜ inside the content");  // V3.2
}

TEST(StrictParser, Parameters) {
  const auto call = [](const std::string& parameters) {
    return kBegin + "<｜DSML｜invoke name=\"f\">\n" + parameters + "</｜DSML｜invoke>\n" + kEnd + kEos;
  };
  const auto parameter = [](const std::string& key, const std::string& flag, const std::string& value) {
    return "<｜DSML｜parameter name=\"" + key + "\" string=\"" + flag + "\">" + value + "</｜DSML｜parameter>\n";
  };
  Accept(call(parameter("a", "true", "x\n\"<") + parameter("b", "false", "[1]")), false,
         "||f({\"a\": \"x\\n\\\"<\", \"b\": [1]})");
  Accept(call(parameter("b", "false", "unchecked")), false, "||f({\"b\": unchecked})");
  Accept(call(parameter("a\"b", "true", "")), false, "||f({\"a\\\"b\": \"\"})");
  Accept(call(parameter("中", "true", "文")), false, "||f({\"中\": \"文\"})");
  Reject(call(parameter("a", "true", "") + parameter("a", "true", "")), false, "parameter \"a\" occurs twice");
  Reject(call(parameter("a", "maybe", "")), false, "expected name=");
  Reject(call("<｜DSML｜parameter name=\"a\">1</｜DSML｜parameter>\n"), false, "expected name=");
  Reject(call("<｜DSML｜parameter name=\"a\" string=\"true\">1</｜DSML｜parameter>"), false,
         "expected \">\" and one newline");
}

// The strict parser reads back the renderer's text of an assistant message.
TEST(StrictParser, ReadsBackWhatTheRendererWrites) {
  ChatRequest request{.thinking = true};
  request.messages.push_back({.role = Role::kUser, .content = "q"});
  request.messages.push_back({.role = Role::kAssistant, .content = " c\n", .reasoning_content = "\nr"});
  request.messages.back().tool_calls = {{.id = "", .name = "f", .arguments = R"({"a": "x\n<", "b": {"c": [1, 2.5]}})"},
                                        {.id = "", .name = "g", .arguments = "{}"}};
  const std::string prompt = *RenderPrompt(request, ChatDialect::kV4Preview);
  const std::string completion = prompt.substr(prompt.find("<think>") + 7);
  Accept(completion, true, "\nr| c\n|f({\"a\": \"x\\n<\", \"b\": {\"c\": [1, 2.5]}})g({})");
  EXPECT_EQ(Brief(ParseOutput(completion, true)), "r| c|f({\"a\": \"x\\n<\", \"b\": {\"c\": [1, 2.5]}})g({})");
}

}  // namespace
}  // namespace dsv4
