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

namespace dsv4 {
namespace {

using test::Brief;
using test::kEos;

std::string Param(const std::string& name, const std::string& flag, const std::string& value) {
  return "<｜DSML｜parameter name=\"" + name + "\" string=\"" + flag + "\">" + value + "</｜DSML｜parameter>\n";
}
std::string Invoke(const std::string& name, const std::string& parameters) {
  return "<｜DSML｜invoke name=\"" + name + "\">\n" + parameters + "</｜DSML｜invoke>\n";
}
std::string Calls(const std::string& invokes) { return "<｜DSML｜tool_calls>\n" + invokes + "</｜DSML｜tool_calls>"; }

// Assembles a message from deltas alone and checks their order.
class Collector {
 public:
  void Take(const std::vector<OutputDelta>& deltas) {
    for (const OutputDelta& d : deltas) {
      using Kind = OutputDelta::Kind;
      switch (d.kind) {
        case Kind::kReasoning:
          message_.reasoning_content += d.text;
          break;
        case Kind::kContent:
          message_.content += d.text;
          break;
        case Kind::kToolCallBegin:
          EXPECT_FALSE(open_);
          EXPECT_EQ(d.index, static_cast<int>(message_.tool_calls.size()));
          message_.tool_calls.push_back({.id = "", .name = d.text, .arguments = ""});
          open_ = true;
          break;
        case Kind::kToolCallArguments:
          EXPECT_TRUE(open_);
          EXPECT_EQ(d.index, static_cast<int>(message_.tool_calls.size()) - 1);
          EXPECT_FALSE(d.text.empty());
          message_.tool_calls.back().arguments += d.text;
          break;
        case Kind::kToolCallEnd:
          EXPECT_TRUE(open_);
          open_ = false;
          break;
      }
    }
  }
  ParsedMessage Result(const OutputParser& parser) {
    EXPECT_FALSE(open_);
    message_.cut_off = parser.message().cut_off;
    EXPECT_EQ(Brief(message_), Brief(parser.message()));
    return message_;
  }

 private:
  ParsedMessage message_;
  bool open_ = false;
};

ParsedMessage ParsePieces(const std::vector<std::string_view>& pieces, bool thinking) {
  OutputParser parser(thinking);
  Collector collector;
  for (const std::string_view piece : pieces) collector.Take(parser.Push(piece));
  collector.Take(parser.Finish());
  return collector.Result(parser);
}

// Whole, in two parts split at every byte, byte by byte, and in pieces of 2, 3 and 5: always the same.
void ExpectParse(std::string_view text, bool thinking, const std::string& expected) {
  EXPECT_EQ(Brief(ParseOutput(text, thinking)), expected) << text;
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    ASSERT_EQ(Brief(ParsePieces({text.substr(0, cut), text.substr(cut)}, thinking)), expected)
        << text << " cut at " << cut;
  }
  for (const size_t n : {1, 2, 3, 5}) {
    std::vector<std::string_view> pieces;
    for (size_t at = 0; at < text.size(); at += n) pieces.push_back(text.substr(at, n));
    ASSERT_EQ(Brief(ParsePieces(pieces, thinking)), expected) << text << " in pieces of " << n;
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
  ExpectThinking("r</think>c\n</think>\nd", "r|c\n\nd|");
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
      "|f({\"k\": \"v\"})!");
  ExpectContent("<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f" + kEos, "|!");
}

TEST(OutputParser, PartialTagsAreHeldBackAndReleased) {
  ExpectContent("a < b </thin", "a < b </thin|");
  ExpectContent("a\n\n<｜DSML｜tool_call", "a\n\n<｜DSML｜tool_call|");
  ExpectContent("<｜end▁of▁sent", "<｜end▁of▁sent|");
  OutputParser parser(false);
  EXPECT_EQ(parser.Push("a\n\n<｜DS")[0].text, "a");
  EXPECT_TRUE(parser.Push("ML｜tool_calls").empty());
  EXPECT_TRUE(parser.in_content());
  EXPECT_TRUE(parser.Push(">").empty());
  EXPECT_FALSE(parser.in_content());
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
  key("a\"b", "a\\\"b");
  ExpectContent(Calls(Invoke("f", Param("k", "false", "1") + Param("k", "false", "2"))), "|f({\"k\": 1, \"k\": 2})");
}

TEST(OutputParser, JsonValues) {
  const auto value = [](const std::string& text, const std::string& json) {
    ExpectContent(Calls(Invoke("f", Param("k", "false", text))), "|f({\"k\": " + json + "})");
  };
  value("123456789012345678901234567890", "123456789012345678901234567890");
  value("1.50", "1.50");
  value("\"s\"", "\"s\"");
  value("{\"a\":[1,2]}", "{\"a\":[1,2]}");
  value("not json", "\"not json\"");
  value("NaN", "\"NaN\"");
  value("[1,", "\"[1,\"");
  value("", "\"\"");
  value("a < \"b\"", "\"a < \\\"b\\\"\"");
  const std::string untyped = "<｜DSML｜parameter name=\"k\">";
  ExpectContent(Calls(Invoke("f", untyped + "5</｜DSML｜parameter>\n")), "|f({\"k\": 5})");
  ExpectContent(Calls(Invoke("f", untyped + "five</｜DSML｜parameter>\n")), "|f({\"k\": \"five\"})");
}

TEST(OutputParser, MissingEnds) {
  const std::string open = "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n";
  const std::string parameter = "<｜DSML｜parameter name=\"k\" string=\"true\">v";
  ExpectContent("<｜DSML｜tool_calls>", "|");
  ExpectContent(open, "|f({})!");
  ExpectContent(open + "<｜DSML｜parameter name=\"k", "|f({})!");
  ExpectContent(open + parameter, "|f({\"k\": \"v\"})!");
  ExpectContent(open + parameter + "</｜DSML｜par", "|f({\"k\": \"v\"})!");
  ExpectContent(open + "<｜DSML｜parameter name=\"k\" string=\"false\">[1, 2", "|f({\"k\": \"[1, 2\"})!");
  ExpectContent(open + parameter + "</｜DSML｜parameter>\n</｜DSML｜invoke>\n", "|f({\"k\": \"v\"})");
  ExpectContent(open + parameter + "</｜DSML｜parameter>\n</｜DSML｜tool_calls>", "|f({\"k\": \"v\"})");
  ExpectContent(open + parameter + "</｜DSML｜invoke>\n</｜DSML｜tool_calls>", "|f({\"k\": \"v\"})");
  ExpectContent(open + parameter + "\n" + parameter + "</｜DSML｜parameter>\n", "|f({\"k\": \"v\\n\", \"k\": \"v\"})!");
  ExpectContent(open + parameter + Invoke("g", ""), "|f({\"k\": \"v\"})g({})");
  ExpectContent(open + Invoke("g", ""), "|f({})g({})");
}

TEST(OutputParser, UnusualBlocks) {
  ExpectContent("c\n" + Invoke("f", Param("k", "true", "v")), "c|f({\"k\": \"v\"})");  // no frame
  ExpectContent(Calls("words " + Invoke("f", "words " + Param("k", "true", "v") + "words ") + "words"),
                "|f({\"k\": \"v\"})");
  ExpectContent(Calls(Invoke("", Param("k", "true", "v")) + Invoke("g", "")), "|g({})");
  ExpectContent(Calls(Param("k", "true", "v") + Invoke("g", "")), "|g({})");
  ExpectContent(Calls(Invoke("f", "")) + "\n\ntext after" + Calls(Invoke("g", "")), "|f({})");
  ExpectContent(Calls("<｜DSML｜invoke name=\"f\" >\n" + Param("k", "true", "v") + "</｜DSML｜invoke>"),
                "|f({\"k\": \"v\"})");
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
  EXPECT_TRUE(parser.done());
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
    ASSERT_EQ(Brief(ParsePieces(pieces, thinking)), Brief(whole)) << text;
    for (const ToolCall& call : whole.tool_calls) {
      if (JsonQuote(call.arguments).find("\uFFFD") != std::string::npos) continue;  // not UTF-8, like the text
      const auto arguments = ParseJsonValue(call.arguments, {.python_constants = false});
      ASSERT_TRUE(arguments.ok() && arguments->is_object()) << call.arguments;
    }
  }
}

}  // namespace
}  // namespace dsv4
