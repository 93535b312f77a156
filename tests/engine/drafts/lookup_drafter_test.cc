#include "engine/drafts/lookup_drafter.h"

#include <gtest/gtest.h>

#include "support/random.h"

namespace dsv4 {
namespace {

using Ids = std::vector<TokenId>;

Ids DraftOf(Ids tokens, int64_t longest, int64_t shortest, int64_t most) {
  const TokenId next = tokens.back();
  tokens.pop_back();
  Ids draft;
  LookUp(tokens, next, longest, shortest, most, &draft);
  return draft;
}

TEST(LookUp, TakesTheLongestMatchAndOfEqualsTheLast) {
  EXPECT_EQ(DraftOf({1, 2, 3, 4, 5, 1, 2, 3}, 4, 2, 5), (Ids{4, 5, 1, 2, 3}));
  EXPECT_EQ(DraftOf({7, 8, 7, 8, 7, 8}, 4, 2, 5), (Ids{7, 8, 7, 8, 7}));
  EXPECT_EQ(DraftOf({5, 5, 5, 5}, 4, 2, 3), (Ids{5, 5, 5}));
  EXPECT_EQ(DraftOf({1, 2, 9, 1, 2, 8, 1, 2}, 4, 2, 3), (Ids{8, 1, 2}));
  EXPECT_EQ(DraftOf({9, 1, 2, 3, 6, 0, 1, 2, 3, 7, 4, 9, 1, 2, 3}, 4, 3, 4), (Ids{6, 0, 1, 2}));
  EXPECT_EQ(DraftOf({1, 2, 3}, 4, 2, 5), Ids{});
  EXPECT_EQ(DraftOf({1}, 4, 1, 5), Ids{});
}

// Compares with the definition.
TEST(LookUp, IsItsDefinition) {
  test::Random random(4);
  for (int i = 0; i < 3000; ++i) {
    Ids t;
    const int64_t vocab = i % 2 == 0 ? 3 : 60, tokens = 1 + random.Index(i % 2 == 0 ? 30 : 300);
    for (int64_t n = tokens; n > 0; --n) t.push_back(static_cast<TokenId>(random.Index(vocab)));
    const int64_t longest = 1 + random.Index(8), shortest = 1 + random.Index(4), most = 1 + random.Index(7);
    const auto n = static_cast<int64_t>(t.size());
    int64_t best = 0, end = 0;
    for (int64_t e = 1; e < n; ++e) {
      int64_t length = 0;
      while (length < std::min(longest, e) &&
             t[static_cast<size_t>(e - 1 - length)] == t[static_cast<size_t>(n - 1 - length)])
        ++length;
      if (length >= best) best = length, end = e;
    }
    Ids with = t;
    for (int64_t j = 0; j < most && best >= shortest; ++j) with.push_back(with[static_cast<size_t>(end + j)]);
    EXPECT_EQ(DraftOf(t, longest, shortest, most), Ids(with.begin() + n, with.end()));
  }
}

}  // namespace
}  // namespace dsv4
