// Prompts of a server, abbreviated as in brief.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "dsv4/chat.h"
#include "text/brief.h"

namespace dsv4 {
namespace {

using test::Full;

std::string Served(const std::string& messages, const std::string& more = "", LaterSystem later = LaterSystem::kPlain) {
  const auto request = ParseChatRequest(R"({"messages": [)" + messages + "]" + more + "}");
  if (!request.ok()) return "parse: " + request.status().message();
  const auto prompt = RenderServedPrompt(*request, ChatDialect::kV4Preview, later);
  return prompt.ok() ? prompt->text : "render: " + prompt.status().message();
}

std::string Official(const std::string& messages, const std::string& more = "") {
  return *RenderPrompt(*ParseChatRequest(R"({"messages": [)" + messages + "]" + more + "}"), ChatDialect::kV4Preview);
}

// "s:A u:q a:x" as JSON. s system, d developer, u user, a assistant (reasoning "r"), t tool, r reminder.
std::string Messages(const std::string& brief) {
  static const std::pair<char, const char*> kRoles[] = {
      {'s', "system"}, {'d', "developer"}, {'u', "user"}, {'a', "assistant"}, {'t', "tool"}, {'r', "latest_reminder"}};
  std::string json;
  for (size_t at = 0; at < brief.size();) {
    const size_t end = std::min(brief.find(' ', at), brief.size());
    for (const auto& [letter, role] : kRoles) {
      if (brief[at] != letter) continue;
      json += (json.empty() ? R"({"role": ")" : R"(, {"role": ")") + std::string(role) + R"(", "content": ")" +
              brief.substr(at + 2, end - at - 2) + "\"" + (letter == 'a' ? R"(, "reasoning_content": "r"})" : "}");
    }
    at = end + 1;
  }
  return json;
}

struct ServedCase {
  const char* messages;
  const char* chat;      // the prompt without thinking
  const char* thinking;  // the prompt with thinking
};

constexpr ServedCase kServedCases[] = {
    {"s:A u:q", "{[}A{U}q{H}", "{[}A{U}q{A}{T}"},
    {"s:A s:B u:q", "{[}A\n\nB{U}q{H}", "{[}A\n\nB{U}q{A}{T}"},
    {"s:A d:B u:q", "{[}A\n\nB{U}q{H}", "{[}A\n\nB{U}q{A}{T}"},
    {"d:A u:q", "{[}A{U}q{H}", "{[}A{U}q{A}{T}"},
    {"s: s:A s: u:q", "{[}A{U}q{H}", "{[}A{U}q{A}{T}"},
    {"u:q s:B", "{[}{U}q\n\nB{H}", "{[}{U}q\n\nB{A}{T}"},
    {"u:q d:B", "{[}{U}q\n\nB{H}", "{[}{U}q\n\nB{A}{T}"},
    {"s:A u:q s:B", "{[}A{U}q\n\nB{H}", "{[}A{U}q\n\nB{A}{T}"},
    {"u:q s:B s:C", "{[}{U}q\n\nB\n\nC{H}", "{[}{U}q\n\nB\n\nC{A}{T}"},
    {"u:q s:", "{[}{U}q{H}", "{[}{U}q{A}{T}"},
    {"u:q s:B u:z", "{[}{U}q\n\nB\n\nz{H}", "{[}{U}q\n\nB\n\nz{A}{T}"},
    {"u:q s:B a:x u:z", "{[}{U}q\n\nB{H}x{]}{U}z{H}", "{[}{U}q\n\nB{H}x{]}{U}z{A}{T}"},
    {"u:q a:x s:B", "{[}{U}q{H}x{]}{U}B{H}", "{[}{U}q{H}x{]}{U}B{A}{T}"},
    {"u:q a:x s:B u:z", "{[}{U}q{H}x{]}{U}B\n\nz{H}", "{[}{U}q{H}x{]}{U}B\n\nz{A}{T}"},
    {"u:q a:x d:B a:y u:z", "{[}{U}q{H}x{]}{U}B{H}y{]}{U}z{H}", "{[}{U}q{H}x{]}{U}B{H}y{]}{U}z{A}{T}"},
    {"s:A", "{[}A{H}", "{[}A{A}{T}"},
    {"d:A", "{[}A{H}", "{[}A{A}{T}"},
    {"s:", "{[}{H}", "{[}{A}{T}"},
    {"a:x u:q", "{[}{H}x{]}{U}q{H}", "{[}{H}x{]}{U}q{A}{T}"},
    {"s:A a:x u:q", "{[}A{H}x{]}{U}q{H}", "{[}A{H}x{]}{U}q{A}{T}"},
    {"u:q a:x a:y u:z", "{[}{U}q{H}x{]}{H}y{]}{U}z{H}", "{[}{U}q{H}x{]}{H}y{]}{U}z{A}{T}"},
    {"u:q a:x a:y", "{[}{U}q{H}x{]}{H}y{]}{H}", "{[}{U}q{A}{T}r{/T}x{]}{A}{T}r{/T}y{]}{A}{T}"},
    {"a:x", "{[}{H}x{]}{H}", "{[}{A}{T}r{/T}x{]}{A}{T}"},
    {"s:A r:R u:q", "{[}A{R}R{U}q{H}", "{[}A{R}R{U}q{A}{T}"},
    {"r:R s:A u:q", "{[}A{R}R{U}q{H}", "{[}A{R}R{U}q{A}{T}"},
    {"u:q r:R", "{[}{U}q{R}R{H}", "{[}{U}q{R}R{A}{T}"},
    {"u:q r:R a:x u:z", "{[}{U}q{R}R{H}x{]}{U}z{H}", "{[}{U}q{R}R{H}x{]}{U}z{A}{T}"},
    {"u:q t:w s:B", "{[}{U}q\n\n<tool_result>w</tool_result>\n\nB{H}",
     "{[}{U}q\n\n<tool_result>w</tool_result>\n\nB{A}{T}"},
};

TEST(ChatServed, EveryListOfMessagesEndsWithAHeader) {
  for (const ServedCase& c : kServedCases) {
    EXPECT_EQ(Served(Messages(c.messages)), Full(c.chat)) << c.messages;
    EXPECT_EQ(Served(Messages(c.messages), R"(, "thinking": true)"), Full(c.thinking)) << c.messages;
  }
}

// A model was trained on these lists in the official form.
TEST(ChatServed, ListsOfTheFormatAreTheOfficialEncoders) {
  const std::string tools = R"(, "tools": [{"type": "function", "function": {"name": "now"}}])";
  for (const char* brief : {"u:q", "s:A u:q", "u:q a:x u:z", "s:A u:q a:x u:z a:y u:w", "u:q u:z", "u:q a:x t:w",
                            "u:q a:x t:w t:v u:z", "s:A r:R u:q"}) {
    for (const std::string more : {"", R"(, "thinking": true)", R"(, "thinking": true, "drop_thinking": false)"}) {
      EXPECT_EQ(Served(Messages(brief), more), Official(Messages(brief), more)) << brief << more;
      EXPECT_EQ(Served(Messages(brief), more + tools), Official(Messages(brief), more + tools)) << brief << more;
    }
  }
}

TEST(ChatServed, ALastMessageIsContinuedAfterItsOwnHeader) {
  const std::string prefix = R"(, {"role": "assistant", "content": "x", "reasoning_content": "r", "prefix": true})";
  EXPECT_EQ(Served(Messages("u:q s:B") + prefix), Full("{[}{U}q\n\nB{H}x"));
  EXPECT_EQ(Served(Messages("u:q s:B") + prefix, R"(, "thinking": true)"), Full("{[}{U}q\n\nB{A}{T}r{/T}x"));
  EXPECT_EQ(Served(Messages("u:q a:y") + prefix), Full("{[}{U}q{H}y{]}{H}x"));
  EXPECT_EQ(Served(prefix.substr(2)), Full("{[}{H}x"));
}

TEST(ChatServed, ReminderTagsAreForLaterTextsOnly) {
  EXPECT_EQ(Served(Messages("s:A s:B u:q d:C a:x s:D"), "", LaterSystem::kReminderTags),
            Full("{[}A\n\nB{U}q\n\n<system-reminder>\nC\n</system-reminder>{H}x{]}"
                 "{U}<system-reminder>\nD\n</system-reminder>{H}"));
  EXPECT_EQ(Served(Messages("u:q s:"), "", LaterSystem::kReminderTags), Full("{[}{U}q{H}"));
}

// The prompt up to a later system message is a prefix of the prompt with it.
TEST(ChatServed, ALaterSystemTextLeavesTheBeginningAsItIs) {
  const std::string whole = Served(Messages("s:A u:q a:x u:z s:B"));
  const std::string before = Official(Messages("s:A u:q a:x u:z"));
  EXPECT_TRUE(whole.starts_with(before.substr(0, before.rfind(Full("{A}"))))) << whole;
}

TEST(ChatServed, ReasoningAfterTheLastUserTurnCountsSystemTexts) {
  const std::string thinking = R"(, "thinking": true)";
  const std::string tools = thinking + R"(, "tools": [{"type": "function", "function": {"name": "now"}}])";
  EXPECT_EQ(Served(Messages("u:q a:x s:B"), thinking), Full("{[}{U}q{H}x{]}{U}B{A}{T}"));
  const std::string kept = Served(Messages("u:q a:x s:B"), tools);
  EXPECT_TRUE(kept.ends_with(Full("{U}q{A}{T}r{/T}x{]}{U}B{A}{T}"))) << kept;
  // The effort text comes before the header of a greeting.
  const std::string greeting = Served(Messages("a:x u:q"), thinking + R"(, "effort": "max")");
  EXPECT_TRUE(greeting.starts_with(Full("{[}Reasoning Effort: "))) << greeting;
  EXPECT_TRUE(greeting.ends_with(Full("\n\n{H}x{]}{U}q{A}{T}"))) << greeting;
}

TEST(ChatServed, ToolsOfAnySystemMessageAreInTheFirst) {
  const std::string now = R"("tools": [{"type": "function", "function": {"name": "now"}}])";
  const std::string q = R"({"role": "user", "content": "q"})";
  const std::string late = q + R"(, {"role": "system", "content": "B", )" + now + "}";
  EXPECT_EQ(Served(late), Served(Messages("u:q s:B"), ", " + now));
  EXPECT_EQ(Served(R"({"role": "system", "content": "A"}, )" + late), Served(Messages("s:A u:q s:B"), ", " + now));
  const std::string two = R"({"role": "system", "content": "A", )" + now +
                          R"(}, {"role": "developer", "content": "B"}, )";
  EXPECT_EQ(Served(two + q), Served(Messages("s:A s:B u:q"), ", " + now));
  EXPECT_EQ(Served(q + R"(, {"role": "system", "content": "B", "response_format": {"type": "json_object"}})"),
            Served(Messages("u:q s:B"), R"(, "response_format": {"type": "json_object"})"));
}

// A task's token ends the prompt, and its answer has no header.
TEST(ChatServed, TasksKeepTheirTokens) {
  const std::string query = R"({"role": "user", "content": "q", "task": "query"})";
  EXPECT_EQ(Served(query), Full("{[}{U}q<｜query｜>"));
  EXPECT_EQ(Served(query + R"(, {"role": "system", "content": "B"})"), Full("{[}{U}q\n\nB<｜query｜>"));
  EXPECT_EQ(Served(query + ", " + Messages("a:x u:z")), Full("{[}{U}q<｜query｜>x{]}{U}z{H}"));
  const std::string title = R"({"role": "assistant", "content": "ans", "task": "title"})";
  EXPECT_EQ(Served(Messages("u:q") + ", " + title), Full("{[}{U}q{H}ans{]}<｜title｜>"));
}

TEST(ChatServed, ErrorsNameTheMessageOfTheRequest) {
  EXPECT_EQ(Served(Messages("s:A s:B u:q") + R"(, {"role": "user", "content": "", "tool_calls": [
      {"function": {"name": "f"}}]})"),
            "render: messages[3]: tool_calls belong on an assistant message");
}

}  // namespace
}  // namespace dsv4
