// Damaged calls: never a call with lost or changed arguments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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

// Forms that models write in place of a call: each change keeps all of its calls, or nothing is a call, or the official
// parser reads the same from it.
struct Change {
  std::string from, to;  // every `from` becomes `to`
};
const std::vector<Change> kChanges = {
    {"\" string=", "\"\n  string="},
    {"\" string=", "\"\tstring="},
    {"\" string=", "\"string="},
    {"<｜DSML｜parameter name=", "<｜DSML｜parameter\n    name="},
    {"<｜DSML｜invoke name=", "<｜DSML｜invoke id=\"1\" name="},
    {" name=\"", " name = \""},
    {"name=\"cmd\"", "name=cmd"},
    {"name=\"cmd\"", "name=\"cmd'"},
    {"name=\"cmd\"", "name=“cmd”"},
    {"name=\"cmd\"", "name=\"\"cmd\"\""},
    {"name=\"cmd\"", "name=\"'cmd'\""},
    {"name=\"cmd\"", "name=\"c\\\"md\""},
    {"name=\"cmd\"", "name=\"cmd\" name=\"other\""},
    {"name=\"cmd\"", "key=\"cmd\""},
    {"string=\"true\"", "string=\"true\" string=\"false\""},
    {"string=\"true\"", "string=true"},
    {"string=\"true\"", "string=\"yes\""},
    {"string=\"true\"", "string"},
    {" string=\"true\"", ""},
    {" string=\"false\"", ""},
    {"string=\"true\"", "type=\"string\""},
    {"string=\"true\">", "string=\"true\"><![CDATA["},
    {"string=\"true\">", "string=\"true\" value=\"x\">"},
    {"string=\"true\">", "string=\"true\"/>"},
    {"string=\"true\">", "string=\"true\" >"},
    {"string=\"true\">", "string=\"true\">\n"},
    {"</｜DSML｜parameter>", "]]></｜DSML｜parameter>"},
    {"</｜DSML｜parameter>", "</parameter>"},
    {"</｜DSML｜parameter>", "</｜DSML｜ parameter>"},
    {"</｜DSML｜parameter>", "</｜DSML｜parameter >"},
    {"</｜DSML｜parameter>", "< /｜DSML｜parameter>"},
    {"</｜DSML｜parameter>", "<｜DSML｜/parameter>"},
    {"</｜DSML｜parameter>", "</｜DSML｜cmd>"},
    {"</｜DSML｜parameter>", "</｜DSML｜>"},
    {"</｜DSML｜parameter>", "&lt;/｜DSML｜parameter&gt;"},
    {"</｜DSML｜parameter>\n", "</｜DSML｜parameter>"},
    {"</｜DSML｜parameter>\n", "</｜DSML｜parameter>\r\n"},
    {"</｜DSML｜parameter>\n", "</｜DSML｜parameter>\n<!-- next -->\n"},
    {"</｜DSML｜parameter>\n", "</｜DSML｜parameter>,\n"},
    {"</｜DSML｜parameter>\n", "\n"},
    {"</｜DSML｜parameter>\n",
     "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"cmd\" string=\"true\">again</｜DSML｜parameter>\n"},
    {"</｜DSML｜parameter>\n", "</｜DSML｜parameter>\n{\"timeout\": 7}\n"},
    {"</｜DSML｜parameter>\n", "</｜DSML｜parameter>\n<parameter name=\"timeout\">7</parameter>\n"},
    {"</｜DSML｜parameter>\n",
     "</｜DSML｜parameter>\n<|DSML|parameter name=\"timeout\" string=\"false\">7</|DSML|parameter>\n"},
    {"｜DSML｜", "|DSML|"},
    {"｜DSML｜parameter", "|DSML|parameter"},
    {"</｜DSML｜", "</|DSML|"},
    {"<｜DSML｜invoke", "<|DSML|invoke"},
    {"｜DSML｜", "｜dsml｜"},
    {"｜DSML｜", "｜DSML | "},
    {"｜DSML｜", "｜｜DSML｜｜"},
    {"｜DSML｜", "\u200b｜DSML｜"},
    {"｜DSML｜", "DSML"},
    {"｜DSML｜", ""},
    {"｜DSML｜", "antml:"},
    {"｜DSML｜parameter", "｜DSML｜ parameter"},
    {"｜DSML｜parameter", "｜DSML｜Parameter"},
    {"｜DSML｜parameter", "｜DSML｜param"},
    {"｜DSML｜parameter", "｜DSML｜argument"},
    {"｜DSML｜invoke", "｜DSML｜ invoke"},
    {"｜DSML｜invoke", "｜DSML｜INVOKE"},
    {"｜DSML｜invoke", "｜DSML｜tool_call"},
    {"｜DSML｜tool_calls", "｜DSML｜ calls"},
    {"｜DSML｜tool_calls", "｜DSML｜function_calls"},
    {"｜DSML｜tool_calls", "tool_calls"},
    {"<｜DSML｜tool_calls>\n", "```xml\n<｜DSML｜tool_calls>\n"},
    {"<｜DSML｜tool_calls>\n", "<｜DSML｜tool_calls>\nFirst:\n"},
    {"<｜DSML｜tool_calls>\n", "<｜DSML｜tool_calls>\n<｜DSML｜tool_calls>\n"},
    {"<｜DSML｜tool_calls>\n", ""},
    {"</｜DSML｜tool_calls>", ""},
    {"</｜DSML｜tool_calls>", "</｜DSML｜tool_calls>\n```\nThen."},
    {"</｜DSML｜invoke>\n", ""},
    {"</｜DSML｜invoke>\n", "</｜DSML｜invoke>\n<!-- </｜DSML｜invoke> -->\n"},
    {"</｜DSML｜invoke>\n", "</｜DSML｜invoke>\nand then:\n"},
    {"</｜DSML｜invoke>\n", "</invoke>\n"},
    {"</｜DSML｜invoke>\n", "</｜DSML｜invoke>\n</｜DSML｜invoke>\n"},
    {"<｜DSML｜invoke name=\"run\">\n", "<｜DSML｜invoke name=\"run\">\n<｜DSML｜invoke name=\"two\">\n"},
    {"<｜DSML｜invoke name=\"run\">\n", "<｜DSML｜invoke name=\"run\">\n{\"timeout\": 7,}\n"},
    {"<｜DSML｜invoke name=\"run\">\n", "<｜DSML｜invoke name=\"run\">\n<arguments>\n"},
    {"<｜DSML｜invoke name=\"run\">\n", "<｜DSML｜invoke name=\"run\">\n&lt;b&gt;\n"},
    {"<｜DSML｜invoke name=\"run\">\n", "<｜DSML｜invoke name=\"run\" timeout=\"7\">\n"},
    {"<｜DSML｜invoke name=\"run\">\n", "<｜DSML｜invoke>\n<｜DSML｜name>run</｜DSML｜name>\n"},
};

std::string ReplaceAll(std::string text, const Change& change) {
  for (size_t at = text.find(change.from); at != text.npos; at = text.find(change.from, at + change.to.size()))
    text.replace(at, change.from.size(), change.to);
  return text;
}

enum class Read { kCalls, kText, kAsStrict };

// `calls`: the calls before `text` was changed.
Read ExpectNoLoss(const std::string& text, const std::string& calls, std::mt19937& random) {
  const OutputParserOptions options{.tools = Tools()};
  const ParsedMessage whole = ParsePieces({text}, options);
  std::vector<std::string_view> pieces;
  for (size_t at = 0, n = 0; at < text.size(); at += n)
    pieces.push_back(std::string_view(text).substr(at, n = 1 + random() % 9));
  EXPECT_EQ(Brief(ParsePieces(pieces, options)), Brief(whole)) << text;
  if (whole.tool_calls.empty()) {
    EXPECT_EQ(whole.content, ParsePieces({text}, {.calls = false}).content) << text;
    return Read::kText;
  }
  if (OnlyCalls(whole) == calls) return Read::kCalls;
  const auto strict = ParseOutputStrict(text + kEos, false);
  EXPECT_TRUE(strict.ok() && OnlyCalls(*strict) == OnlyCalls(whole)) << text << "\n->\n" << OnlyCalls(whole);
  return Read::kAsStrict;
}

// The changes that keep names and values, so that two of them together do, too.
std::vector<Change> ChangesOfStyle(std::mt19937& random) {
  std::vector<Change> changes = kChanges;
  for (const std::string& invoke : {Invoke("run", Param("cmd", "true", "a")), Invoke("two", Param("a", "true", "b"))}) {
    const std::string text = "\n\n" + Calls(invoke);
    const std::string calls = OnlyCalls(ParsePieces({text}, {.tools = Tools()}));
    std::erase_if(changes, [&](const Change& change) {
      return ExpectNoLoss(ReplaceAll(text, change), calls, random) == Read::kAsStrict;
    });
  }
  return changes;
}

TEST(OutputParserMutations, OtherStylesLoseNoArgument) {
  std::mt19937 random(20260508);
  std::array<int, 3> count{};
  const auto change = [&](std::string text, const Change& one) {
    if (random() % 2 == 0) return ReplaceAll(std::move(text), one);
    const size_t at = text.find(one.from, random() % text.size());  // one place only
    return at == text.npos ? text : text.replace(at, one.from.size(), one.to);
  };
  const std::vector<Change> styles = ChangesOfStyle(random);
  const auto try_changes = [&](std::span<const Change> changes) {
    const Sample sample = MakeSample(random);
    std::string text = sample.text;
    for (const Change& one : changes) text = change(std::move(text), one);
    const std::string calls = OnlyCalls(ParsePieces({sample.text}, {.tools = Tools()}));
    ++count[static_cast<size_t>(ExpectNoLoss(text, calls, random))];
  };
  for (int round = 0; round < 20; ++round) {
    for (const Change& one : kChanges) try_changes(std::array{one});
    for (const Change& one : styles) try_changes(std::array{one, styles[random() % styles.size()]});
  }
  EXPECT_GT(count[0], 500);
  EXPECT_GT(count[1], 500);
  EXPECT_LT(count[2], 500);
}

std::string Quoted(std::string_view text) {
  std::string json = "\"";
  AppendJsonEscaped(text, &json);
  return json + "\"";
}

TEST(OutputParserMutations, ValuesAndNamesThatLookLikeMarkup) {
  std::mt19937 random(20260509);
  const std::string example = Calls(Invoke("two", Param("a", "true", "x") + Param("b", "true", "y")));
  for (const std::string& value :
       {example, "See:\n" + example + "\nDone.", Param("timeout", "false", "9"), Invoke("two", ""),
        std::string("</｜DSML｜parameter>"),
        std::string("a</｜DSML｜parameter>\n<｜DSML｜parameter name=\"x\" string=\"true\">b"),
        std::string("<|DSML|parameter name=\"a\">x</|DSML|parameter>"), std::string("<![CDATA[x]]>"),
        std::string("<!-- </｜DSML｜parameter> -->"), std::string("&lt;&amp;&quot;&#x27;"), std::string("</think>"),
        std::string("<think>"), std::string("\"'\\\"\\n"), std::string("｜DSML｜"), std::string("<｜DSML｜"),
        std::string("</｜DSML｜")}) {
    for (const std::string name : {"run", "functions.run", "mcp__a.b-c/d:e", "run 2", "工具"}) {
      const std::string json = Quoted(value);
      const std::string calls = OnlyCalls(
          {.reasoning_content = "",
           .content = "",
           .tool_calls = {{.id = "", .name = name, .arguments = "{\"cmd\": " + json + "}"}}});
      ExpectNoLoss("\n\n" + Calls(Invoke(name, Param("cmd", "true", value))), calls, random);
    }
  }
}

TEST(OutputParserMutations, TwoBlocks) {
  std::mt19937 random(20260510);
  const std::string a = Invoke("run", Param("cmd", "true", "a")), b = Invoke("run", Param("cmd", "true", "b"));
  const auto calls = [](const std::string& text) { return OnlyCalls(ParsePieces({text}, {.tools = Tools()})); };
  for (const char* between : {"", "\n\n", "\nThen:\n", "</think>"}) {
    const std::string text = "\n\n" + Calls(a) + between + Calls(b);
    const ParsedMessage whole = ParsePieces({text}, {.tools = Tools()});
    const bool both = OnlyCalls(whole) == calls(Calls(a + b));
    const bool first = OnlyCalls(whole) == calls(Calls(a)) && whole.content.find(Calls(b)) != std::string::npos;
    EXPECT_TRUE(both || first || (whole.tool_calls.empty() && whole.content.find(Calls(b)) != std::string::npos))
        << Brief(whole);
  }
}

TEST(OutputParserMutations, JsonThatIsNotJsonIsNeverHalfRead) {
  std::mt19937 random(20260511);
  for (const char* value :
       {"{\"a\": 1,}", "[1, 2,]", "{'a': 1}", "{a: 1}", "True", "None", "NaN", "Infinity",    "1_000",
        "0x10",        "+5",      "05",       "5.",     ".5",   "1e",   "\"a", "{\"a\": 1}}", "{\"a\": 1, \"a\": 2}",
        "// x\n5",     "5 // x",  "five",     "5 5",    "",     " "}) {
    for (const char* key : {"timeout", "factor", "tags", "any", "other", "arguments", "input"}) {
      for (const char* flag : {"true", "false"}) {
        const std::string text = "\n\n" + Calls(Invoke("run", Param(key, flag, value)));
        const ParsedMessage whole = ParsePieces({text}, {.tools = Tools()});
        ASSERT_LE(whole.tool_calls.size(), 1u);
        if (whole.tool_calls.empty()) {
          EXPECT_EQ(whole.content, ParsePieces({text}, {.calls = false}).content);
          continue;
        }
        // The value is there as it is, or as a text.
        const std::string json = Quoted(value);
        const std::string& arguments = whole.tool_calls[0].arguments;
        EXPECT_TRUE(ParseJsonValue(arguments).ok()) << arguments;
        EXPECT_TRUE(arguments.find(json) != std::string::npos || arguments.find(value) != std::string::npos)
            << text << "\n->\n"
            << arguments;
      }
    }
  }
}

}  // namespace
}  // namespace dsv4
