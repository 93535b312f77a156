#include "base/json.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

TEST(Json, ParsesAndKeepsTheOrderOfKeys) {
  const auto json = ParseJson(R"({"b": 1, "a": [true, null, "\u00e9"], "c": -2.5e3})", "test");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ((*json).begin().key(), "b");
  EXPECT_EQ((*json)["a"][2], "é");
  EXPECT_EQ((*json)["c"], -2500.0);
}

TEST(Json, ADuplicateKeysLastValueWinsAtTheFirstPlace) {
  const auto json = ParseJson(R"({"a": 1, "b": 2, "a": 3})", "test");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->size(), 2u);
  EXPECT_EQ(json->begin().key(), "a");
  EXPECT_EQ((*json)["a"], 3);
}

TEST(Json, RefusesDeepNestingWithoutRecursing) {
  const auto nested = [](const std::string& open, const std::string& close, int depth) {
    std::string s;
    for (int i = 0; i < depth; ++i) s += open;
    s += "1";
    for (int i = 0; i < depth; ++i) s += close;
    return s;
  };
  EXPECT_TRUE(ParseJson(nested("[", "]", kMaxJsonDepth), "test").ok());
  EXPECT_TRUE(ParseJson(nested("{\"a\":", "}", kMaxJsonDepth), "test").ok());
  EXPECT_EQ(ParseJson(nested("[", "]", kMaxJsonDepth + 1), "test").status().code(), StatusCode::kDataLoss);
  EXPECT_FALSE(ParseJson(nested("{\"a\":", "}", kMaxJsonDepth + 1), "test").ok());
  EXPECT_FALSE(ParseJson(std::string(10'000'000, '['), "test").ok());
  // Brackets inside strings and after escapes are text.
  EXPECT_TRUE(ParseJson("[\"" + std::string(1000, '[') + "\\\"" + std::string(1000, '{') + "\\\\\"]", "test").ok());
}

TEST(Json, BrokenTextIsAnErrorThatNamesTextAndPlace) {
  const std::vector<std::string> broken = {"",
                                           " ",
                                           "{",
                                           "[1,]",
                                           "{\"a\" 1}",
                                           "{'a': 1}",
                                           "nul",
                                           "01",
                                           "1e",
                                           "+1",
                                           "[1] 2",
                                           "\"\\x\"",
                                           "\"\\ud800\"",
                                           "\"\n\"",
                                           "NaN",
                                           std::string("[1]\0", 4),
                                           std::string("[1]\0 rest", 9),
                                           "\xef\xbb\xbf[1",
                                           "1e999",
                                           "[1}",
                                           "// comment\n1",
                                           "\"\xff\"",
                                           "\"\xc0\x80\"",
                                           "\"\xed\xa0\x80\"",
                                           "\"\xf4\x90\x80\x80\"",
                                           "\"\xe2\x82\"",  // invalid UTF-8
                                           "{\"\xff\": 1}"};
  for (const std::string& text : broken) {
    const auto json = ParseJson(text, "config.json");
    ASSERT_FALSE(json.ok()) << text;
    EXPECT_EQ(json.status().code(), StatusCode::kDataLoss) << text;
    EXPECT_EQ(json.status().message().rfind("config.json: ", 0), 0u) << json.status().message();
    EXPECT_EQ(json.status().message().find('\n'), std::string::npos) << json.status().message();
  }
  EXPECT_NE(ParseJson("[1, x]", "t").status().message().find("byte 5"), std::string::npos);
}

TEST(Json, MissingFilesAreNotFound) {
  EXPECT_EQ(ReadJsonFile("/nonexistent/config.json").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace dsv4
