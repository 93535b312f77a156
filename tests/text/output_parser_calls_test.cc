// What is known of tools: types, wrapped arguments. Options of the parser.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/output_parser.h"
#include "text/json_value.h"
#include "text/output_pieces.h"

namespace dsv4 {
namespace {

using test::Brief;
using test::Calls;
using test::Invoke;
using test::kEos;
using test::Param;
using test::ParsePieces;
using test::Tools;

std::string ParseWith(const std::string& text) {
  OutputParser parser(OutputParserOptions{.tools = Tools()});
  parser.Push(text);
  parser.Finish();
  return Brief(parser.message());
}

TEST(OutputParserTools, ATextBecomesTheTypeOfItsParameter) {
  const auto value = [](const std::string& key, const std::string& flag, const std::string& text) {
    const std::string parsed = ParseWith(Calls(Invoke("run", Param(key, flag, text))));
    const std::string begin = "||run({\"" + key + "\": ";
    EXPECT_TRUE(parsed.starts_with(begin) && parsed.ends_with("})")) << parsed;
    return parsed.substr(begin.size(), parsed.size() - begin.size() - 2);
  };
  EXPECT_EQ(value("timeout", "true", "5"), "5");
  EXPECT_EQ(value("timeout", "true", "5.5"), "\"5.5\"");
  EXPECT_EQ(value("timeout", "true", "five"), "\"five\"");
  EXPECT_EQ(value("factor", "true", "5"), "5");
  EXPECT_EQ(value("factor", "true", "1.5e3"), "1.5e3");
  EXPECT_EQ(value("deep", "true", "true"), "true");
  EXPECT_EQ(value("tags", "true", "[\"a\"]"), "[\"a\"]");
  EXPECT_EQ(value("tags", "true", "null"), "null");
  EXPECT_EQ(value("tags", "true", "{}"), "\"{}\"");
  EXPECT_EQ(value("any", "true", "5"), "\"5\"");
  EXPECT_EQ(value("either", "true", "5"), "\"5\"");
  EXPECT_EQ(value("either", "false", "5"), "5");
  EXPECT_EQ(value("other", "true", "5"), "\"5\"");
  EXPECT_EQ(value("cmd", "false", "5"), "\"5\"");
  EXPECT_EQ(value("cmd", "false", "\"5\""), "\"5\"");
  EXPECT_EQ(value("either", "false", "soon"), "\"soon\"");
  // The tag says that it is JSON, and the schema that it is no string: it is damaged.
  const std::string soon = Calls(Invoke("run", Param("timeout", "false", "soon")));
  EXPECT_EQ(ParseWith(soon), "|" + soon + "|");
}

TEST(OutputParserTools, WrappedArgumentsAreUnwrapped) {
  const auto call = [](const std::string& tool, const std::string& key, const std::string& flag,
                       const std::string& text) { return Calls(Invoke(tool, Param(key, flag, text))); };
  for (const char* key : {"arguments", "input"}) {
    const std::string object = "{\"cmd\": \"ls\", \"timeout\": 5}";
    EXPECT_EQ(ParseWith(call("run", key, "false", object)), "||run(" + object + ")");
    EXPECT_EQ(ParseWith(call("run", key, "true", object)), "||run(" + object + ")");
    EXPECT_EQ(ParseWith(call("run", key, "true", "ls")), "||run({\"cmd\": \"ls\"})");
    // None of these says what the arguments are.
    for (const std::string& text : {call("run", key, "false", "[1]"), call("run", key, "false", "{\"a\": 1, \"a\": 2}"),
                                    call("two", key, "true", "ls")}) {
      EXPECT_EQ(ParseWith(text), "|" + text + "|");
    }
    // A tool that is not known may have such a parameter.
    EXPECT_EQ(ParseWith(call("other", key, "true", "ls")), std::string("||other({\"") + key + "\": \"ls\"})");
  }
  EXPECT_EQ(ParseWith(call("own", "input", "true", "{\"a\": 1}")), "||own({\"input\": \"{\\\"a\\\": 1}\"})");
  EXPECT_EQ(ParseWith(Calls(Invoke("run", "{\"arguments\": {\"cmd\": \"ls\"}}\n"))), "||run({\"cmd\": \"ls\"})");
  const std::string two = Calls(Invoke("run", Param("input", "true", "a") + Param("timeout", "false", "1")));
  EXPECT_EQ(ParseWith(two), "||run({\"input\": \"a\", \"timeout\": 1})");
}

TEST(OutputParserOptions, WithoutCallsTheTextOfACallIsContent) {
  const std::string text = "c\n\n" + Calls(Invoke("f", Param("k", "true", "v"))) + "\nd";
  EXPECT_EQ(Brief(ParsePieces({text}, {.calls = false})), "|" + text + "|");
  EXPECT_EQ(Brief(ParsePieces({"r\n" + text + "</think>c"}, {.thinking = true, .calls = false})), "r\n" + text + "|c|");
}

TEST(OutputParserOptions, OneCall) {
  const std::string f = Invoke("f", Param("k", "true", "v"));
  EXPECT_EQ(Brief(ParsePieces({Calls(f + f)}, {.one_call = true})), "||f({\"k\": \"v\"})");
  EXPECT_EQ(Brief(ParsePieces({Calls(f)}, {.one_call = true})), "||f({\"k\": \"v\"})");
}

TEST(OutputParserOptions, EndsThatAreTokensAreTextInLetters) {
  EXPECT_EQ(Brief(ParsePieces({"a" + kEos + "b"}, {.eos_text = false})), "|a" + kEos + "b|");
  OutputParser parser({.thinking = true, .think_text = false});
  test::Collector collector;
  for (const char* piece :
       {"So </th", "ink> ends it.\n", "Draft:\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n"})
    collector.Take(parser.Push(piece));
  EXPECT_TRUE(parser.in_calls());
  collector.Take(parser.EndReasoning());
  EXPECT_TRUE(parser.in_content());
  collector.Take(parser.Push("\n\nc\n\n" + Calls(Invoke("g", ""))));
  collector.Take(parser.Finish());
  EXPECT_EQ(Brief(collector.Result(parser)),
            "So </think> ends it.\nDraft:\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">|c|g({})");
}

TEST(OutputParserOptions, CallsOfAGrammarComeAtOnce) {
  const std::string text = "\n\n" + Calls(Invoke("run", Param("cmd", "true", "a\n<b") + Param("timeout", "true", "5")) +
                                          Invoke("g", ""));
  const std::string expected = "||run({\"cmd\": \"a\\n<b\", \"timeout\": 5})g({})";
  for (const size_t n : {1, 2, 3, 5, 500}) {
    OutputParser parser({.tools = Tools()});
    parser.StreamCalls();
    test::Collector collector;
    size_t arguments = 0;
    for (size_t at = 0; at < text.size(); at += n) {
      const auto deltas = parser.Push(std::string_view(text).substr(at, n));
      for (const OutputDelta& d : deltas) arguments += d.kind == OutputDelta::Kind::kToolCallArguments ? 1 : 0;
      collector.Take(deltas);
    }
    EXPECT_TRUE(parser.done());  // at the last byte of the block
    EXPECT_EQ(Brief(collector.Result(parser)), expected);
    EXPECT_GE(arguments, n < 5 ? 7u : 2u);
  }
  // Cut off: what is out stays incomplete.
  OutputParser parser(false);
  parser.StreamCalls();
  parser.Push(text.substr(0, text.find("<b")));
  parser.Finish();
  EXPECT_TRUE(parser.message().cut_off);
  EXPECT_FALSE(ParseJsonValue(parser.message().tool_calls.at(0).arguments).ok());
}

}  // namespace
}  // namespace dsv4
