#include "dsv4/output_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/json_text.h"
#include "text/brief.h"
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

// Whole, in two parts split at every byte, byte by byte, and in pieces of 2, 3 and 5: always the same.
void ExpectParse(std::string_view text, bool thinking, const std::string& expected) {
  EXPECT_EQ(Brief(ParseOutput(text, thinking)), expected) << text;
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    ASSERT_EQ(Brief(ParsePieces({text.substr(0, cut), text.substr(cut)}, {.thinking = thinking})), expected)
        << text << " cut at " << cut;
  }
  for (const size_t n : {1, 2, 3, 5}) {
    std::vector<std::string_view> pieces;
    for (size_t at = 0; at < text.size(); at += n) pieces.push_back(text.substr(at, n));
    ASSERT_EQ(Brief(ParsePieces(pieces, {.thinking = thinking})), expected) << text << " in pieces of " << n;
  }
}

void ExpectContent(const std::string& text, const std::string& expected) { ExpectParse(text, false, "|" + expected); }
void ExpectThinking(const std::string& text, const std::string& expected) { ExpectParse(text, true, expected); }

TEST(OutputParser, ReasoningAndContent) {
  ExpectThinking("r</think>c", "r|c|");
  ExpectThinking("\n\nr\n\n</think>\n\nc\n\n", "r|c\n\n|");
  ExpectThinking("r\n\nr", "r\n\nr||");
  ExpectThinking(" r </think> c ", " r | c |");
  ExpectThinking("</think>c", "|c|");
  ExpectThinking("", "||");
  ExpectThinking("\n", "||");
  ExpectThinking("r</think></think>c", "r|c|");
  ExpectThinking("r</think>c\n</think>\nd", "r|c\n</think>\nd|");  // a reply that mentions the tag
  ExpectThinking("<think>\nr</think>c", "r|c|");
  ExpectThinking("\n<think>r</think>c", "r|c|");
  ExpectThinking("<think><think>r</think>c", "<think>r|c|");
  ExpectThinking("a <think> r</think>c", "a <think> r|c|");
  ExpectContent("c", "c|");
  ExpectContent("\n\nc\n", "c\n|");
  ExpectContent("</think>c", "c|");
  ExpectContent("<think>c", "<think>c|");
}

TEST(OutputParser, EosEndsTheOutput) {
  ExpectContent("c" + kEos, "c|");
  ExpectContent("c\n" + kEos + "more", "c\n|");
  ExpectThinking("r" + kEos + "</think>c", "r||");
  ExpectThinking("r</think>c" + kEos, "r|c|");
  ExpectContent(Calls(Invoke("f", Param("k", "true", "v"))) + kEos, "|f({\"k\": \"v\"})");
  ExpectContent(
      "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"k\" string=\"true\">v" + kEos,
      "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"k\" string=\"true\">v|!");
  ExpectContent("<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f" + kEos,
                "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f|!");
}

TEST(OutputParser, PartialTagsAreHeldBackAndReleased) {
  ExpectContent("a < b </thin", "a < b </thin|");
  ExpectContent("a\n\n<｜DSML｜tool_call", "a\n\n<｜DSML｜tool_call|");
  ExpectContent("<｜end▁of▁sent", "<｜end▁of▁sent|");
  OutputParser parser(false);
  EXPECT_EQ(parser.Push("a\n\n<｜DS")[0].text, "a");
  EXPECT_TRUE(parser.Push("ML｜tool_calls>\n<｜DSML｜invoke").empty());
  EXPECT_TRUE(parser.in_content());
  EXPECT_TRUE(parser.Push(" ").empty());
  EXPECT_FALSE(parser.in_content());
  EXPECT_TRUE(parser.in_calls());
}

TEST(OutputParser, ToolCalls) {
  const std::string two = Calls(Invoke("f", Param("a", "true", "x") + Param("b", "false", "[1, {\"c\": null}]")) +
                                Invoke("g", ""));
  const std::string expected = "f({\"a\": \"x\", \"b\": [1, {\"c\": null}]})g({})";
  ExpectContent("c\n\n" + two, "c|" + expected);
  ExpectContent("c" + two, "c|" + expected);
  ExpectContent(two, "|" + expected);
  ExpectContent("c \n\n\n" + two, "c |" + expected);
  ExpectThinking("r</think>c\n\n" + two, "r|c|" + expected);
  ExpectThinking("r</think>\n\n" + two, "r||" + expected);
  ExpectThinking("r\n\n" + two, "r||" + expected);  // tool calls inside the reasoning are calls
}

TEST(OutputParser, BothSpellingsOfAnEmptyCall) {
  ExpectContent(Calls("<｜DSML｜invoke name=\"f\">\n\n</｜DSML｜invoke>\n"), "|f({})");
  ExpectContent(Calls("<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n"), "|f({})");
}

TEST(OutputParser, SpacedTags) {
  ExpectContent(
      "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"k\" string=\"true\">v"
      "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
      "|f({\"k\": \"v\"})");
}

TEST(OutputParser, ValuesAreTakenAsTheyStand) {
  const auto value = [](const std::string& text, const std::string& json) {
    ExpectContent(Calls(Invoke("f", Param("k", "true", text))), "|f({\"k\": \"" + json + "\"})");
  };
  value("", "");
  value(" a\n\n", " a\\n\\n");
  value("a < b </ c </p> <x>", "a < b </ c </p> <x>");
  value("say \"hi\" \\ \t", "say \\\"hi\\\" \\\\ \\t");
  value("中文🙂", "中文🙂");
  value("</DSML|parameter> <｜DSM", "</DSML|parameter> <｜DSM");
  value("<｜DSML｜other>", "<｜DSML｜other>");
  value("&lt;</think>\n\n<think>", "&lt;</think>\\n\\n<think>");
}

TEST(OutputParser, Keys) {
  const auto key = [](const std::string& text, const std::string& json) {
    ExpectContent(Calls(Invoke("f", Param(text, "false", "1"))), "|f({\"" + json + "\": 1})");
  };
  key("two words", "two words");
  key(" string= mode ", " string= mode ");
  key("", "");
  key("中", "中");
}

TEST(OutputParser, JsonValues) {
  const auto value = [](const std::string& text, const std::string& json) {
    ExpectContent(Calls(Invoke("f", Param("k", "false", text))), "|f({\"k\": " + json + "})");
  };
  value("123456789012345678901234567890", "123456789012345678901234567890");
  value("1.50", "1.50");
  value("\"s\"", "\"s\"");
  value("{\"a\":[1,2]}", "{\"a\":[1,2]}");
  value("\n [1]\n", "[1]");
  value("not json", "\"not json\"");
  value("NaN", "\"NaN\"");
  value("[1,", "\"[1,\"");
  value("", "\"\"");
  value("a < \"b\"", "\"a < \\\"b\\\"\"");
  const std::string untyped = "<｜DSML｜parameter name=\"k\">";
  ExpectContent(Calls(Invoke("f", untyped + "5</｜DSML｜parameter>\n")), "|f({\"k\": 5})");
  ExpectContent(Calls(Invoke("f", untyped + "five</｜DSML｜parameter>\n")), "|f({\"k\": \"five\"})");
}

// A text that is cut off in a call is text. Calls whose end alone is missing are complete.
TEST(OutputParser, MissingEnds) {
  const std::string open = "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n";
  const std::string parameter = "<｜DSML｜parameter name=\"k\" string=\"true\">v", end = "</｜DSML｜parameter>\n";
  ExpectContent("<｜DSML｜tool_calls>", "<｜DSML｜tool_calls>|");
  for (const std::string& text :
       {open, open + "<｜DSML｜parameter name=\"k", open + parameter, open + parameter + end,
        open + parameter + "</｜DSML｜par", open + Param("k", "false", "[1, 2").substr(0, 50)}) {
    ExpectContent("c\n\n" + text, "c\n\n" + text + "|!");
  }
  const std::string call = "|f({\"k\": \"v\"})";
  ExpectContent(open + parameter + end + "</｜DSML｜invoke>\n", call);
  ExpectContent(open + parameter + end + "</｜DSML｜invoke>", call);
  ExpectContent(open + parameter + end + "</｜DSML｜invoke>\n</｜DSML｜tool_ca", call);
  ExpectContent(open + parameter + end + "</｜DSML｜tool_calls>", call);
  ExpectContent(open + parameter + end + Invoke("g", ""), call + "g({})");
  for (const std::string& text :
       {open + parameter + "</｜DSML｜invoke>\n</｜DSML｜tool_calls>", open + parameter + "\n" + parameter + end,
        open + parameter + Invoke("g", ""), open + Invoke("g", ""),
        Calls(Invoke("f", Param("k", "true", "v"))).substr(0, 90) + Invoke("g", "")}) {
    ExpectContent(text, text + "|");
  }
}

TEST(OutputParser, UnusualBlocks) {
  const std::string param = Param("k", "true", "v"), call = "|f({\"k\": \"v\"})";
  ExpectContent("c\n" + Invoke("f", param), "c" + call);  // no frame
  ExpectContent("c\n\n<｜DSML｜toolcalls>\n" + Invoke("f", param) + "</｜DSML｜tool_calls>", "c" + call);
  ExpectContent("c\n\n<｜DSM｜tool_calls>\n" + Invoke("f", param) + "</｜DSML｜tool_calls>", "c" + call);
  ExpectContent("c\n\n｜DSML｜tool_calls>\n" + Invoke("f", param) + "</｜DSML｜function_calls>", "c" + call);
  ExpectContent(Calls(Invoke("f", param)) + "\n\ntext after", call);
  ExpectContent(Calls(Invoke("f", param)) + "\n\n" + Calls(Invoke("g", "")), call + "g({})");
  ExpectContent(Calls("<｜DSML｜invoke name=\"f\" >\n" + param + "</｜DSML｜invoke>"), call);
  const auto one = [&](const std::string& tag) {
    ExpectContent(Calls("<｜DSML｜invoke name=\"f\">\n" + tag + "v</｜DSML｜parameter>\n</｜DSML｜invoke>\n"), call);
  };
  one("<｜DSML｜parameter string=\"true\" name=\"k\">");
  one("<｜DSML｜parameter name='k' string='true'>");
  one("<｜DSML｜parameter name=\"k\" string=\"True\">");
  one("<｜DSML｜parameter name = \"k\"string=\"true\" >");
  one("<｜DSML｜parameter name=\"k\" type=\"string\" string=\"true\">");
  ExpectContent(Calls("<｜DSML｜invoke name=\"f\">\n{\"k\": \"v\"}\n</｜DSML｜invoke>\n"), call);
}

// Nothing of a malformed block is a call, also no call in it that is well-formed.
TEST(OutputParser, MalformedBlocksAreText) {
  const std::string param = Param("k", "true", "v"), good = Invoke("g", param);
  const auto body = [](const std::string& text) { return Invoke("f", text); };
  for (const std::string& call : {
           body("words " + param),
           body(param + "words"),
           body(param + param),
           body("{\"k\": 1, \"k\": 2}"),
           body("{\"k\": 1"),
           body("{\"k\": 1}" + param),
           body("<parameter name=\"k\" string=\"true\">v</parameter>\n"),
           body("<｜DSML｜parameter name=\"k\" string=\"yes\">v</｜DSML｜parameter>\n"),
           body("<｜DSML｜parameter name=\"k\" name=\"l\">v</｜DSML｜parameter>\n"),
           body("<｜DSML｜parameter name=\"k\" value=\"v\"></｜DSML｜parameter>\n"),
           body("<｜DSML｜parameter name=\"k\"\" string=\"true\">v</｜DSML｜parameter>\n"),
           body("<｜DSML｜parameter name=\"k string=\"true\">v</｜DSML｜parameter>\n"),
           body("<｜DSML｜parameter string=\"true\">v</｜DSML｜parameter>\n"),
           body("<｜DSML｜parameter name=k string=\"true\">v</｜DSML｜parameter>\n"),
           body("<｜DSML｜parametre name=\"k\" string=\"true\">v</｜DSML｜parameter>\n"),
           body(Param("k", "true", "a</｜DSML｜parameter>b")),
           body(Param("k", "true", "a</｜DSML｜invoke>b")),
           body(Param("k", "true", param)),
           Invoke("", param),
           param,
           std::string("<｜DSML｜invoke>\n") + param + "</｜DSML｜invoke>\n",
           std::string("<｜DSML｜invoke name=\"f\" k=\"v\">\n</｜DSML｜invoke>\n"),
           std::string("<｜DSML｜invoke name=\"f {\nk: v\n</｜DSML｜invoke>\n"),
       }) {
    if (call != param) ExpectContent(call + good, call + good + "|");
    ExpectContent("c\n\n" + Calls(good + call + good), "c\n\n" + Calls(good + call + good) + "|");
    const std::string text = Calls(call + good) + "\n\n" + Calls(good);
    if (call != param)
      ExpectThinking("r\n" + text + "</think>c\n\n" + Calls(good), "r\n" + text + "|c|g({\"k\": \"v\"})");
  }
  ExpectContent(Calls(""), Calls("") + "|");
  // The value ends with what looks like the end of the block.
  const std::string ends = Calls(body(Param("k", "true", Calls(body(Param("k", "true", "x"))).substr(95) + "y")));
  ExpectContent(ends, ends + "|");
}

TEST(OutputParser, TextAboutCallsIsText) {
  for (const std::string text : {
           "The model writes <｜DSML｜tool_calls> first, then <｜DSML｜invoke name=\"NAME\">. That is all.",
           "The marker is `｜DSML｜`; tags are `<｜DSML｜invoke`, `<｜DSML｜parameter` and `</｜DSML｜tool_calls>`.",
           "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"$NAME\">\n...\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>\nis a "
           "block.",
           "The block:\n```\n<｜DSML｜tool_calls>\n...\n</｜DSML｜tool_calls>\n```\nholds calls.",
           "So it ends: </｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
       }) {
    ExpectContent(text, text + "|");
  }
  const std::string call = Calls(Invoke("f", Param("k", "true", "v")));
  ExpectContent("Like so:\n```\n" + call + "\n```\nThat is all.", "Like so:\n```\n" + call + "\n```\nThat is all.|");
  ExpectContent("```\nls\n```\n\n" + call, "```\nls\n```|f({\"k\": \"v\"})");
  ExpectContent("```\nls\n\n" + call, "```\nls|f({\"k\": \"v\"})");
  ExpectContent("Tags: <｜DSML｜tool_calls>, and so on.\n\n" + call,
                "Tags: <｜DSML｜tool_calls>, and so on.|f({\"k\": \"v\"})");
}

TEST(OutputParser, OtherVersionsBlocksStayText) {
  for (const std::string text : {"<｜DSML｜function_calls>\n<x>\n</｜DSML｜function_calls>", "<｜DSML｜toolcalls>",
                                 "<｜tool▁calls▁begin｜>", "<DSML｜tool_calls>", "<tool_calls>", "<｜DSML｜  calls>"}) {
    ExpectContent("c\n\n" + text, "c\n\n" + text + "|");
  }
}

TEST(OutputParser, DeltasOfWholeCharactersAreWholeCharacters) {
  const std::string text = "中\n\n文<｜中</｜think>🙂" +
                           Calls(Invoke("名", Param("键", "true", "值<｜🙂\"</") + Param("k", "false", "[\"中\"")));
  OutputParser parser(false);
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const size_t n = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    for (const OutputDelta& d : parser.Push(std::string_view(text).substr(at, n))) {
      EXPECT_EQ(*ParseJsonString(JsonQuote(d.text)), d.text) << "a broken character";
    }
    at += n;
  }
  parser.Finish();
  EXPECT_EQ(parser.message().tool_calls.size(), 1u);
}

TEST(OutputParser, ContentComesAtOnce) {
  OutputParser parser(true);
  EXPECT_EQ(parser.Push("rea").at(0).kind, OutputDelta::Kind::kReasoning);
  const auto deltas = parser.Push("son</think>con");
  ASSERT_EQ(deltas.size(), 2u);
  EXPECT_EQ(deltas[0].text, "son");
  EXPECT_EQ(deltas[1].kind, OutputDelta::Kind::kContent);
  EXPECT_EQ(deltas[1].text, "con");
}

// Any sequence of fragments: whole and split agree, and arguments are always JSON.
TEST(OutputParser, RandomTextsSplitAnywhere) {
  const std::vector<std::string> fragments = {"<think>",
                                              "</think>",
                                              "\n",
                                              "\n\n",
                                              "a",
                                              "\"",
                                              "<",
                                              "中",
                                              "{\"x\":1}",
                                              "1",
                                              "<｜DSML｜",
                                              "</｜DSML｜",
                                              "｜DSML｜",
                                              "<｜DSML｜tool_calls>",
                                              "</｜DSML｜tool_calls>",
                                              "<｜DSML｜ calls>",
                                              "</｜DSML｜ calls>",
                                              "<｜DSML｜invoke name=\"f\">",
                                              "<｜DSML｜invoke name=\"",
                                              "</｜DSML｜invoke>",
                                              "<｜DSML｜parameter name=\"k\" string=\"true\">",
                                              "<｜DSML｜parameter name=\"k\" string=\"false\">",
                                              "<｜DSML｜parameter name=\"",
                                              "\" string=\"true\">",
                                              "\">",
                                              "</｜DSML｜parameter>",
                                              "<｜end▁of▁sentence｜>",
                                              "\xEF\xBD",
                                              "\xFF"};
  std::mt19937 random(7);
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (unsigned n = random() % 14; n > 0; --n) text += fragments[random() % fragments.size()];
    const bool thinking = random() % 2 == 0;
    std::vector<std::string_view> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + random() % 20;
      pieces.push_back(std::string_view(text).substr(at, n));
      at += n;
    }
    const ParsedMessage whole = ParseOutput(text, thinking);
    ASSERT_EQ(Brief(ParsePieces(pieces, {.thinking = thinking})), Brief(whole)) << text;
    for (const ToolCall& call : whole.tool_calls) {
      if (JsonQuote(call.arguments).find("\uFFFD") != std::string::npos) continue;  // not UTF-8, like the text
      const auto arguments = ParseJsonValue(call.arguments, {.python_constants = false});
      ASSERT_TRUE(arguments.ok() && arguments->is_object()) << call.arguments;
    }
  }
}

}  // namespace
}  // namespace dsv4
