// Damaged calls: never a call with lost or changed arguments. What is known of tools: types, wrapped arguments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
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

std::shared_ptr<const std::vector<ToolSignature>> Tools() {
  return std::make_shared<std::vector<ToolSignature>>(
      std::vector<ToolSignature>{{.name = "run",
                                  .parameters = {{.name = "cmd", .types = kStringType, .required = true},
                                                 {.name = "timeout", .types = kIntegerType},
                                                 {.name = "factor", .types = kNumberType},
                                                 {.name = "deep", .types = kBooleanType},
                                                 {.name = "tags", .types = kArrayType | kNullType},
                                                 {.name = "any", .types = kAnyType},
                                                 {.name = "either", .types = kStringType | kIntegerType}}},
                                 {.name = "two",
                                  .parameters = {{.name = "a", .types = kStringType, .required = true},
                                                 {.name = "b", .types = kStringType, .required = true}}},
                                 {.name = "own", .parameters = {{.name = "input", .types = kStringType}}}});
}

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

// A text of calls with the places of its markup: everything but names, keys and values.
struct Sample {
  std::string text;
  std::vector<size_t> markup;       // bytes
  std::vector<size_t> characters;   // of the markup: first bytes
  std::vector<std::string> places;  // texts that a change of style replaces
};

Sample MakeSample(std::mt19937& random) {
  static const std::vector<std::string> values = {
      "ls -l", "rm -r build\n# <b>\n",   "say \"hi\" 'now' > a.txt", "5", "{\"a\": 1}", "中文 🙂 \\n",
      "",      "if a < b && c > d: </p>"};
  static const std::vector<std::string> json = {"5", "[1, {\"b\": null}]", "true", "{\"cmd\": \"x\"}", "1.50"};
  Sample sample;
  const auto add = [&](const std::string& text, bool markup) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (!markup) continue;
      sample.markup.push_back(sample.text.size() + i);
      if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) sample.characters.push_back(sample.text.size() + i);
    }
    sample.text += text;
  };
  add(random() % 2 == 0 ? "I look." : "", false);
  add("\n\n<｜DSML｜tool_calls>\n", true);
  for (size_t calls = 1 + random() % 3; calls > 0; --calls) {
    add("<｜DSML｜invoke name=\"", true);
    const bool run = random() % 4 != 0;
    add(run ? "run" : "two", false);
    add("\">\n", true);
    std::vector<std::string> keys = run ? std::vector<std::string>{"cmd", "timeout", "factor"}
                                        : std::vector<std::string>{"a", "b"};
    if (run) keys.resize(1 + random() % 3);
    for (const std::string& key : keys) {
      const bool text = key != "timeout" && key != "factor";
      add("<｜DSML｜parameter name=\"", true);
      add(key, false);
      add(text ? "\" string=\"true\">" : "\" string=\"false\">", true);
      add(text ? values[random() % values.size()] : key == "timeout" ? "5" : json[random() % json.size()], false);
      add("</｜DSML｜parameter>\n", true);
    }
    add("</｜DSML｜invoke>\n", true);
  }
  add("</｜DSML｜tool_calls>", true);
  return sample;
}

void Replace(std::string* text, const std::string& from, const std::string& to) {
  if (const size_t at = text->find(from); at != text->npos) text->replace(at, from.size(), to);
}

// One change. Those of style keep the meaning; the others damage markup, or put markup into any place.
std::string Mutate(const Sample& sample, std::mt19937& random) {
  static const std::vector<std::string> inserts = {"</｜DSML｜parameter>",
                                                   "</｜DSML｜invoke>",
                                                   "</｜DSML｜tool_calls>",
                                                   "<｜DSML｜invoke name=\"x\">",
                                                   "<｜DSML｜parameter name=\"x\">",
                                                   "<｜DSML｜tool_calls>",
                                                   "</｜DSML｜parameter>\n</｜DSML｜invoke>",
                                                   "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"};
  static const std::string letters = "\"'<>/=x \n{}｜";
  std::string text = sample.text;
  const size_t at = sample.characters[random() % sample.characters.size()];
  const size_t run = std::min<size_t>(
      1 + random() % 8, static_cast<size_t>(std::count_if(sample.markup.begin(), sample.markup.end(),
                                                          [&](size_t m) { return m >= at && m < at + 8; })));
  switch (random() % 12) {
    case 0:
      return text.erase(at, run);
    case 1:
      text[at] = letters[random() % letters.size()];
      return text;
    case 2:
      return text.insert(at, text.substr(at, 1 + random() % 40));
    case 3:
      return text.insert(at, 1, letters[random() % letters.size()]);
    case 4:
      return text.insert(random() % text.size(), inserts[random() % inserts.size()]);
    case 5:
      return text.substr(0, random() % text.size());
    case 6:
      if (at + 1 < text.size()) std::swap(text[at], text[at + 1]);
      return text;
    case 7:
      Replace(&text, "parameter name=\"cmd\" string=\"true\"", "parameter string=\"true\" name=\"cmd\"");
      return text;
    case 8:
      for (const size_t m : sample.markup) {
        if (m < at && text[m] == '"') text[m] = '\'';
      }
      return text;
    case 9:
      Replace(&text, "string=\"true\"", "string=\"True\"");
      return text;
    case 10:
      Replace(&text, " string=\"false\"", " type=\"number\" string=\"false\"");
      return text;
    default:
      Replace(&text, "<｜DSML｜tool_calls>", "<｜DSML｜toolcalls>");
      return text;
  }
}

std::string OnlyCalls(const ParsedMessage& m) {
  return Brief({.reasoning_content = "", .content = "", .tool_calls = m.tool_calls});
}

// Each result is the original calls, or all of it is text. In two cases no parser can see the damage: the strict parser
// of the official encoder takes the damaged text for these calls (a ">" more after a tag is a part of the value), or
// the text ends after one of several calls.
TEST(OutputParserMutations, NoCallLosesAnArgument) {
  std::mt19937 random(20260507);
  int kept = 0, texts = 0, other = 0;
  for (int round = 0; round < 2000; ++round) {
    const Sample sample = MakeSample(random);
    const std::string text = Mutate(sample, random);
    const OutputParserOptions options{.tools = Tools()};
    const ParsedMessage original = ParsePieces({sample.text}, options), whole = ParsePieces({text}, options);
    ASSERT_FALSE(original.tool_calls.empty()) << sample.text;
    std::vector<std::string_view> pieces;
    for (size_t at = 0, n = 0; at < text.size(); at += n) {
      n = 1 + random() % 30;
      pieces.push_back(std::string_view(text).substr(at, n));
    }
    ASSERT_EQ(Brief(ParsePieces(pieces, options)), Brief(whole)) << text;
    if (whole.tool_calls.empty()) {
      EXPECT_EQ(whole.content, ParsePieces({text}, {.calls = false}).content) << text;
      ++texts;
    } else if (OnlyCalls(whole) == OnlyCalls(original)) {
      ++kept;
    } else {
      const auto strict = ParseOutputStrict(text + kEos, false);
      const bool ends_early = sample.text.starts_with(text) && OnlyCalls(original).starts_with(OnlyCalls(whole));
      EXPECT_TRUE(ends_early || (strict.ok() && OnlyCalls(*strict) == OnlyCalls(whole))) << sample.text << "\n->\n"
                                                                                         << text << "\n->\n"
                                                                                         << OnlyCalls(whole);
      ++other;
    }
  }
  EXPECT_GT(kept, 500);
  EXPECT_GT(texts, 500);
  EXPECT_LT(other, 100);
}

}  // namespace
}  // namespace dsv4
