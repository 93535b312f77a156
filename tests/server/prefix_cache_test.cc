// The tree of cuts: what is found, what goes first, and which ids stand for a text.
#include "server/prefix_cache.h"

#include <numeric>
#include <random>

#include "fake_engine.h"
#include "gtest/gtest.h"
#include "nano_tokenizer.h"

namespace dsv4::server {
namespace {

using Ids = std::vector<TokenId>;

Ids Counting(TokenId first, size_t n) {
  Ids ids(n);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

Ids Joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(RadixTree, EqualsAMapOfItsKeys) {
  std::mt19937 random(7);
  const auto any_key = [&] {
    std::vector<char> key(1 + random() % 8);
    for (char& c : key) c = static_cast<char>('a' + random() % 2);
    return key;
  };
  using Tree = RadixTree<char, int>;
  Tree tree;
  std::map<std::vector<char>, Tree::Node*> nodes;
  for (int i = 1; i < 20000; ++i) {
    const std::vector<char> key = any_key();
    if (random() % 2 == 0) {
      Tree::Node* node = tree.Insert(key);
      if (nodes.contains(key)) {
        EXPECT_EQ(nodes[key], node);  // nodes stay where they are
      }
      nodes[key] = node;
      node->value = i;
    } else if (nodes.contains(key)) {
      nodes[key]->value = 0;
      tree.Prune(nodes[key], [](const Tree::Node& n) { return n.value != 0; });
      nodes.erase(key);
    }
    const std::vector<char> probe = any_key();
    std::vector<std::vector<char>> met, expected;
    const size_t common = tree.Walk(probe, [&](const Tree::Node& n) {
      if (n.value != 0) met.push_back(Tree::Key(n));
    });
    size_t longest = 0;
    for (const auto& [k, node] : nodes) {
      const auto same = static_cast<size_t>(std::mismatch(k.begin(), k.end(), probe.begin(), probe.end()).first - k.begin());
      longest = std::max(longest, same);
      if (same == k.size()) expected.push_back(k);
    }
    EXPECT_EQ(met, expected);
    EXPECT_EQ(common, longest);
  }
  while (!nodes.empty()) {
    nodes.begin()->second->value = 0;
    tree.Prune(nodes.begin()->second, [](const Tree::Node& n) { return n.value != 0; });
    nodes.erase(nodes.begin());
  }
  EXPECT_TRUE(tree.root().children.empty());
}

class PrefixCacheTest : public ::testing::Test {
 protected:
  void Put(const Ids& tokens, const std::string& rendered = "", const Ids& more = {}) {
    cache_.Put(std::make_shared<FakeSnapshot>(tokens, bytes_), Joined(tokens, more), rendered);
  }
  std::string Text(const Ids& ids) {
    std::string text;
    for (const TokenId id : ids) text += NanoTokenizer().TokenBytes(id);
    return text;
  }

  FakeEngine engine_{NanoTokenizer().vocab_size()};
  Metrics metrics_{"fake"};
  std::atomic<int64_t> bytes_ = 0;
  PrefixCache cache_{engine_, NanoTokenizer(), metrics_, {}};
};

TEST_F(PrefixCacheTest, TheDeepestCutThatLeavesATokenIsFound) {
  EXPECT_STREQ(cache_.Find(Counting(100, 9)).what, "empty");
  Put(Counting(100, 40));
  Put(Counting(100, 20));
  Put(Joined(Counting(100, 30), Counting(900, 5)));
  const auto found = [&](const Ids& prompt) {
    const auto f = cache_.Find(prompt);
    return f.snapshot == nullptr ? std::string(f.what) : std::to_string(f.snapshot->tokens().size());
  };
  EXPECT_EQ(found(Counting(100, 41)), "40");
  EXPECT_EQ(found(Counting(100, 40)), "20");  // one must be left to read
  EXPECT_EQ(found(Counting(100, 33)), "20");
  EXPECT_EQ(found(Joined(Counting(100, 30), Counting(900, 6))), "35");
  EXPECT_EQ(found(Counting(100, 20)), "diverged");
  EXPECT_EQ(found(Counting(100, 5)), "unrelated");
  EXPECT_EQ(found(Counting(200, 50)), "unrelated");
  EXPECT_EQ(cache_.Look(Counting(100, 33)).common, 33u);
  EXPECT_EQ(cache_.Look(Joined(Counting(100, 33), {7})).common, 33u);
  EXPECT_TRUE(cache_.Has(Counting(100, 40)));
  EXPECT_FALSE(cache_.Has(Counting(100, 39)));
}

TEST_F(PrefixCacheTest, WhatIsReplacedGoesFirstThenWhatIsCold) {
  const Ids shared = Counting(100, 50);
  Put(shared);                                            // two conversations begin like this
  for (const size_t n : {10, 20, 30, 40}) Put(Joined(shared, Counting(1000, n)));
  Put(Joined(shared, Counting(2000, 10)));
  Put(Counting(3000, 10));                                // another one
  (void)cache_.Find(Joined(shared, Counting(1000, 41)));  // used last
  const auto has = [&] {
    std::string out;
    for (const size_t n : {10, 20, 30, 40}) out += cache_.Has(Joined(shared, Counting(1000, n))) ? '1' : '0';
    out += cache_.Has(Joined(shared, Counting(2000, 10))) ? 'b' : '-';
    out += cache_.Has(Counting(3000, 10)) ? 'c' : '-';
    out += cache_.Has(shared) ? 's' : '-';
    return out;
  };
  EXPECT_EQ(has(), "1111bcs");
  const std::vector<std::string> expected = {"1011bcs", "0011bcs", "0011-cs", "0011-c-", "0011---", "0010---", "0000---"};
  for (const std::string& then : expected) {
    EXPECT_TRUE(cache_.Evict());
    EXPECT_EQ(has(), then);
  }
  EXPECT_FALSE(cache_.Evict());
  EXPECT_EQ(bytes_, 0);
  EXPECT_STREQ(cache_.Find(Counting(100, 90)).what, "empty");
}

TEST_F(PrefixCacheTest, ATextGetsTheIdsThatTheModelWrote) {
  const Tokenizer& t = NanoTokenizer();
  const std::string user = "<｜User｜>", text = "Hello there, what is this?";
  // The same text in single characters, as a model may write it.
  Ids written = t.Encode(user);
  for (const char c : text) written = Joined(written, t.Encode(std::string_view(&c, 1)));
  ASSERT_NE(written, t.Encode(user + text));
  const Ids last = {written.back()};
  Put({written.begin(), written.end() - 1}, "a form\n" + text, last);
  const Ids tail = t.Encode(user + "more");
  EXPECT_EQ(cache_.EncodePrompt(user + text + user + "more"), Joined(written, tail));
  EXPECT_EQ(cache_.EncodePrompt("a form\n" + text + user + "more"), Joined(written, tail));
  // Only where no token can reach over the seam.
  EXPECT_EQ(cache_.EncodePrompt(user + text + " more"), t.Encode(user + text + " more"));
  EXPECT_EQ(cache_.EncodePrompt(user + text), t.Encode(user + text));
  // Texts stay while a cut behind them does.
  Put(Joined(written, tail));
  (void)cache_.Evict();
  EXPECT_EQ(cache_.EncodePrompt(user + text + user + "more" + user), Joined(Joined(written, tail), t.Encode(user)));
  EXPECT_EQ(cache_.EncodePrompt(user + text + user + "less"), Joined(written, t.Encode(user + "less")));
  while (cache_.Evict()) {
  }
  EXPECT_EQ(cache_.EncodePrompt(user + text + user + "more"), t.Encode(user + text + user + "more"));
}

}  // namespace
}  // namespace dsv4::server
