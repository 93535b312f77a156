#include "dsv4/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dsv4 {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<TokenId>;

TEST(JsonText, Strings) {
  EXPECT_EQ(JsonQuote("a\"\n中\x01"), R"("a\"\n中\u0001")");
  EXPECT_EQ(JsonQuote("\xFFz\xE4"), "\"\uFFFDz\uFFFD\"");
  EXPECT_EQ(*ParseJsonString(R"( "a\u4e2d\n" )"), "a中\n");
  EXPECT_THAT(ParseJsonString("[1]").status().message(), HasSubstr("expected a JSON string, found an array"));
}

TEST(JsonText, TokenIds) {
  EXPECT_EQ(TokenIdsToJson(Ids{}), "[]");
  EXPECT_EQ(TokenIdsToJson(Ids{1, 20, 300}), "[1, 20, 300]");
  EXPECT_EQ(*ParseTokenIdsJson("[1,20, 300]"), (Ids{1, 20, 300}));
  for (const std::string_view bad : {"[1, -1]", "[1, 1.0]", "[1, \"2\"]", "[1, 99999999999]", "[1, null]"}) {
    EXPECT_EQ(ParseTokenIdsJson(bad).status().message(), "element 1 of the array is not a token id") << bad;
  }
  EXPECT_FALSE(ParseTokenIdsJson("3").ok());
}

TEST(JsonText, TokenIdLists) {
  EXPECT_EQ(*ParseTokenIdList(""), Ids{});
  EXPECT_EQ(*ParseTokenIdList(" 1,2\n3\t, 4\r\n"), (Ids{1, 2, 3, 4}));
  EXPECT_EQ(*ParseTokenIdList(" [1, 2]\n"), (Ids{1, 2}));
  EXPECT_EQ(*ParseTokenIdList("[]"), Ids{});
  for (const std::string_view bad : {"1 x", "1 -2", "1 2.5", "1 99999999999", "[1, 2", "1]", "[", "[[1]]"})
    EXPECT_FALSE(ParseTokenIdList(bad).ok()) << bad;
  EXPECT_EQ(ParseTokenIdList("1 2x").status().message(), "\"2x\" is not a token id");
}

TEST(JsonText, Messages) {
  EXPECT_EQ(MessageToJson({}), R"({"reasoning_content": "", "content": "", "tool_calls": []})");
  ParsedMessage message{.reasoning_content = "r", .content = "c\n"};
  message.tool_calls.push_back({.id = "", .name = "f", .arguments = R"({"k": "v"})"});
  message.tool_calls.push_back({.id = "call_1", .name = "g", .arguments = "{}"});
  EXPECT_EQ(MessageToJson(message),
            R"({"reasoning_content": "r", "content": "c\n", "tool_calls": [)"
            R"({"type": "function", "function": {"name": "f", "arguments": "{\"k\": \"v\"}"}}, )"
            R"({"id": "call_1", "type": "function", "function": {"name": "g", "arguments": "{}"}}]})");
}

TEST(JsonText, CompletionLines) {
  const auto line = ParseCompletionLine(R"({"completion": "x</think>", "thinking": true})");
  ASSERT_TRUE(line.ok());
  EXPECT_EQ(line->completion, "x</think>");
  EXPECT_TRUE(line->thinking);
  EXPECT_FALSE(ParseCompletionLine(R"({"completion": ""})")->thinking);
  EXPECT_FALSE(ParseCompletionLine(R"({"thinking": true})").ok());
  EXPECT_FALSE(ParseCompletionLine(R"({"completion": "", "thinking": 1})").ok());
  EXPECT_FALSE(ParseCompletionLine(R"("x")").ok());
}

}  // namespace
}  // namespace dsv4
