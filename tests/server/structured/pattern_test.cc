// Patterns of JSON strings: which ones can be enforced, and their form in ASCII.
#include "server/structured/pattern.h"

#include <string>

#include "gtest/gtest.h"
#include "server/structured/schema.h"

namespace dsv4::server {
namespace {

TEST(Pattern, HoldsWhereSomeTextNeedsNoEscape) {
  for (const char* held : {"",
                           "abc",
                           "^[a-z]+$",
                           "a|\"",
                           "(?:\\\\|x)y",
                           "\\n?a",
                           "\"*",
                           "(\"b){0,2}c",
                           "\"{0}",
                           "[^a]",
                           "[\"a]",
                           "[\\x00-\\x7f]",
                           "\\s\\S\\d",
                           "\\.\\/",
                           "\\x41\\u0042\\u{43}",
                           "(?<year>\\d{4})",
                           "(?P<x>[\\s\\S])",
                           "[!-#]",
                           "a)b",
                           "[",
                           "(",
                           "\\",
                           "\xC3\xA9",
                           "[\\]\\-]"}) {
    EXPECT_TRUE(HoldsInJson(held)) << held;
  }
  for (const char* not_held :
       {"\"",         "a\"b",    "\\\\",     "\\n",    "a\\tb",   "[\"]",   "[\\\\\"]", "[\\n\\r]", "[\\x00-\\x1f]",
        "\\x22",      "\\u005c", "\\u{a}",   "\\cA",   "\\0",     "\n",     "\"+",      "\"{1,2}",  "(\"|\\\\)x",
        "(?:a\"){2}", "[\\b]",   "a|(?=b)c", "(?!a)b", "(?<=a)b", "(?<!a)b"}) {
    EXPECT_FALSE(HoldsInJson(not_held)) << not_held;
  }
  HoldsInJson(std::string(1'000'000, '('));
  HoldsInJson("a" + std::string(1'000'000, '|'));
}

TEST(Pattern, IsWrittenInAscii) {
  EXPECT_EQ(AsciiPattern("^a\\d[x-z]$"), "^a\\d[x-z]$");
  EXPECT_EQ(AsciiPattern("\xC3\xA9+\xE4\xB8\xAD[\xF0\x9F\x8E\x89]"), "\\u{e9}+\\u{4e2d}[\\u{1f389}]");
  EXPECT_EQ(AsciiPattern("\\\xC3\xA9\\\\\xC3\xA9"), "\\u{e9}\\\\\\u{e9}");
  EXPECT_EQ(AsciiPattern("\t\x7F"), "\\u{9}\\u{7f}");
}

TEST(Schema, PatternsOfStrictOnesThatAJsonStringCannotFollowAreRefused) {
  const Json inside = Json::parse(R"({"type": "object", "properties": {"a": {"items": {"pattern": "\\n"}}}})");
  const Json own = Json::parse(
      R"({"type": "object", "properties": {"a": {"pattern": "\"x\""}, "pattern": {"type": "string"}}})");
  EXPECT_THROW(CheckPatterns(inside, "schema"), ApiError);
  EXPECT_THROW(CheckPatterns(own, "schema"), ApiError);
  EXPECT_THROW(CheckCallPatterns(inside, "schema"), ApiError);
  EXPECT_NO_THROW(CheckCallPatterns(own, "schema"));  // a call writes its parameters' own texts as they are
  EXPECT_EQ(MendCallPatterns(own), own);
  EXPECT_FALSE(MendPatterns(own)["properties"]["a"].contains("pattern"));
  EXPECT_FALSE(MendCallPatterns(inside)["properties"]["a"]["items"].contains("pattern"));
}

}  // namespace
}  // namespace dsv4::server
