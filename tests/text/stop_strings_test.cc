#include "dsv4/stop_strings.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace dsv4 {
namespace {

StopMatcher Make(std::vector<std::string> stops) { return *StopMatcher::Create(std::move(stops)); }

TEST(StopMatcher, HoldsBackWhatMayBecomeAStopString) {
  StopMatcher m = Make({"\n\nUser:"});
  EXPECT_EQ(m.Push("Hi\n"), "Hi");
  EXPECT_EQ(m.Push("there\n\nUs"), "\nthere");
  EXPECT_EQ(m.Push("ed"), "\n\nUsed");
  EXPECT_EQ(m.Push("\n\nUser"), "");
  EXPECT_FALSE(m.stopped());
  EXPECT_EQ(m.Push(": more"), "");
  EXPECT_TRUE(m.stopped());
  EXPECT_EQ(m.matched(), "\n\nUser:");
  EXPECT_EQ(m.Push("x"), "");
  EXPECT_EQ(m.Finish(), "");
}

TEST(StopMatcher, FinishGivesWhatWasHeld) {
  StopMatcher m = Make({"STOP"});
  EXPECT_EQ(m.Push("a STO"), "a ");
  EXPECT_EQ(m.Finish(), "STO");
}

TEST(StopMatcher, FallsBackIntoItself) {
  StopMatcher m = Make({"aab"});
  EXPECT_EQ(m.Push("aaaaab!"), "aaa");
  EXPECT_TRUE(m.stopped());
}

TEST(StopMatcher, FirstToEndWinsThenTheLongest) {
  StopMatcher first = Make({"abcd", "bc"});
  EXPECT_EQ(first.Push("xabcd"), "xa");
  EXPECT_EQ(first.matched(), "bc");
  StopMatcher longest = Make({"c", "abc"});
  EXPECT_EQ(longest.Push("xabc"), "x");
  EXPECT_EQ(longest.matched(), "abc");
}

TEST(StopMatcher, WithoutStringsEverythingPasses) {
  StopMatcher m = Make({});
  EXPECT_EQ(m.Push("abc"), "abc");
  EXPECT_FALSE(m.stopped());
}

TEST(StopMatcher, RefusesAnEmptyString) {
  EXPECT_EQ(StopMatcher::Create({"a", ""}).status().code(), StatusCode::kInvalidArgument);
}

TEST(StopMatcher, SplitsMakeNoDifference) {
  std::mt19937 random(1);
  const auto word = [&](unsigned longest) {
    std::string out(1 + random() % longest, 'a');
    for (char& c : out) c = static_cast<char>('a' + random() % 2);
    return out;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (unsigned n = random() % 3; n > 0; --n) stops.push_back(word(5));
    const std::string text = word(20);
    // By definition: the stop string that ends first, the longest of those.
    size_t end = text.size() + 1, begin = text.size();
    for (size_t e = 1; e <= text.size() && end > text.size(); ++e) {
      for (const std::string& stop : stops) {
        if (!std::string_view(text).substr(0, e).ends_with(stop)) continue;
        end = e;
        begin = std::min(begin, e - stop.size());
      }
    }
    StopMatcher m = Make(stops);
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + random() % 3;
      out += m.Push(std::string_view(text).substr(at, n));
      at += n;
    }
    out += m.Finish();
    ASSERT_EQ(out, text.substr(0, begin)) << text;
    ASSERT_EQ(m.stopped(), end <= text.size());
  }
}

}  // namespace
}  // namespace dsv4
