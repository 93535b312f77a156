// Expected texts are the output of Python 3.11 for json.dumps(json.loads(text), ensure_ascii=False).
#include "text/json_value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace dsv4 {
namespace {

std::string Again(std::string_view text) {
  const auto value = ParseJsonValue(text);
  return value.ok() ? DumpJson(*value) : value.status().message();
}

TEST(JsonValue, PrintsAsPythonDoes) {
  const std::pair<std::string, std::string> cases[] = {
      {R"({"b":1,"a":[true,false,null],"c":{}})", R"({"b": 1, "a": [true, false, null], "c": {}})"},
      {" [ ] ", "[]"},
      {R"(["/","\/","\u00e9","é","\ud83d\ude42","\u007f"])", "[\"/\", \"/\", \"é\", \"é\", \"🙂\", \"\x7f\"]"},
      {R"("\"\\\b\f\n\r\t\u0000\u001F")", R"("\"\\\b\f\n\r\t\u0000\u001f")"},
      {R"({"a":1,"b":2,"a":3})", R"({"a": 3, "b": 2})"},
      {"123456789012345678901234567890", "123456789012345678901234567890"},
      {"-0", "0"},
      {"-0.0", "-0.0"},
      {"1.50", "1.5"},
      {"1e2", "100.0"},
      {"1E+2", "100.0"},
      {"1e16", "1e+16"},
      {"1e15", "1000000000000000.0"},
      {"123456789012345680.0", "1.2345678901234568e+17"},
      {"9007199254740993.0", "9007199254740992.0"},
      {"0.0001", "0.0001"},
      {"0.00001", "1e-05"},
      {"0.000012345", "1.2345e-05"},
      {"1e-7", "1e-07"},
      {"1e100", "1e+100"},
      {"0.1", "0.1"},
      {"100.25", "100.25"},
      {"2.5e-324", "5e-324"},
      {"1e400", "Infinity"},
      {"-1e400", "-Infinity"},
      {"1e-400", "0.0"},
      {"-1e-400", "-0.0"},
      {"0.0e999", "0.0"},
      {"1e99999999999999999999", "Infinity"},
      {"NaN", "NaN"},
      {"[Infinity, -Infinity]", "[Infinity, -Infinity]"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(Again(text), expected) << text;
  EXPECT_EQ(Again("0." + std::string(400, '0') + "1e402"), "10.0");
}

TEST(JsonValue, LoneSurrogatesBecomeReplacementCharacters) {
  EXPECT_EQ(Again(R"("\ud800")"), "\"\uFFFD\"");
  EXPECT_EQ(Again(R"("\udc00x\ud800\u0041")"), "\"\uFFFDx\uFFFDA\"");
}

TEST(JsonValue, RefusesWhatIsNoJson) {
  for (const std::string_view text :
       {"",        " ",         "{",   "[1,]",  "{\"a\":1,}", "{a:1}",    "{\"a\" 1}", "01",
        "1.",      ".5",        "-",   "1e",    "+1",         "'a'",      "\"a",       "\"\n\"",
        "\"\\x\"", "\"\\u12\"", "nul", "[1] 2", "tru",        "\"\xFF\"", "Nan",       "\"\\"}) {
    EXPECT_FALSE(ParseJsonValue(text).ok()) << text;
  }
  EXPECT_EQ(ParseJsonValue("[1 2]").status().message(),
            "not valid JSON: expected ',' or ']' after an element at byte 3");
}

TEST(JsonValue, PythonConstantsCanBeRefused) {
  for (const std::string_view text : {"NaN", "Infinity", "-Infinity"}) {
    EXPECT_FALSE(ParseJsonValue(text, {.python_constants = false}).ok()) << text;
  }
}

TEST(JsonValue, DepthIsLimited) {
  const auto nested = [](size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  EXPECT_TRUE(ParseJsonValue(nested(kMaxJsonValueDepth)).ok());
  EXPECT_FALSE(ParseJsonValue(nested(kMaxJsonValueDepth + 1)).ok());
  EXPECT_THAT(ParseJsonValue(std::string(1'000'000, '[')).status().message(), ::testing::HasSubstr("nested deeper"));
}

}  // namespace
}  // namespace dsv4
