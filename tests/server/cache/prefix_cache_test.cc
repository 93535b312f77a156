// The tree of cached prefixes: lookup, order of eviction, and the ids of a text.
#include "server/cache/prefix_cache.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <numeric>
#include <random>

#include "gtest/gtest.h"
#include "io/test_files.h"
#include "server/base/sha256.h"
#include "server/fake_engine.h"
#include "server/http/keys.h"
#include "server/nano_tokenizer.h"

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
        EXPECT_EQ(nodes[key], node);  // nodes keep their address
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
      const auto same = static_cast<size_t>(std::mismatch(k.begin(), k.end(), probe.begin(), probe.end()).first -
                                            k.begin());
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
  void Put(const Ids& tokens, const std::string& rendered = "", const Ids& more = {}, bool of_ids = true) {
    cache_.Put(tenant_, std::make_shared<FakeSnapshot>(tokens, bytes_), Joined(tokens, more),
               {.of_ids = of_ids, .rendered = {.text = rendered, .content_ranges = {}}});
  }
  Ids Encode(const std::string& text, std::vector<TextRange> given = {}) {
    return cache_.EncodePrompt(tenant_, {.text = text, .content_ranges = std::move(given)});
  }
  // The ids of a text with one token per byte, including special tokens.
  static Ids Spelt(const std::string& text) {
    Ids ids;
    for (const char c : text) ids.push_back(*NanoTokenizer().FindToken(std::string_view(&c, 1)));
    return ids;
  }

  FakeEngine engine_{NanoTokenizer().vocab_size()};
  Metrics metrics_{"fake"};
  std::atomic<int64_t> bytes_ = 0;
  std::string tenant_;
  PrefixCache cache_{engine_, NanoTokenizer(), metrics_, {.in_content = SpecialTokensInContent::kText}};
};

TEST_F(PrefixCacheTest, TheDeepestCutThatLeavesATokenIsFound) {
  EXPECT_STREQ(cache_.Find(tenant_, Counting(100, 9)).what, "empty");
  Put(Counting(100, 40));
  Put(Counting(100, 20));
  Put(Joined(Counting(100, 30), Counting(900, 5)));
  const auto found = [&](const Ids& prompt) {
    const auto f = cache_.Find(tenant_, prompt);
    return f.snapshot == nullptr ? std::string(f.what) : std::to_string(f.snapshot->tokens().size());
  };
  EXPECT_EQ(found(Counting(100, 41)), "40");
  EXPECT_EQ(found(Counting(100, 40)), "20");  // one must be left to read
  EXPECT_EQ(found(Counting(100, 33)), "20");
  EXPECT_EQ(found(Joined(Counting(100, 30), Counting(900, 6))), "35");
  EXPECT_EQ(found(Counting(100, 20)), "diverged");
  EXPECT_EQ(found(Counting(100, 5)), "unrelated");
  EXPECT_EQ(found(Counting(200, 50)), "unrelated");
  EXPECT_EQ(cache_.Look(tenant_, Counting(100, 33)).common, 33u);
  EXPECT_EQ(cache_.Look(tenant_, Joined(Counting(100, 33), {7})).common, 33u);
  EXPECT_TRUE(cache_.Has(tenant_, Counting(100, 40)));
  EXPECT_FALSE(cache_.Has(tenant_, Counting(100, 39)));
}

TEST_F(PrefixCacheTest, WhatIsReplacedGoesFirstThenWhatIsCold) {
  const Ids shared = Counting(100, 50);
  Put(shared);  // shared by two conversations
  for (const size_t n : {10, 20, 30, 40}) Put(Joined(shared, Counting(1000, n)));
  Put(Joined(shared, Counting(2000, 10)));
  Put(Counting(3000, 10));                                         // another one
  (void)cache_.Find(tenant_, Joined(shared, Counting(1000, 41)));  // most recently used
  const auto has = [&] {
    std::string out;
    for (const size_t n : {10, 20, 30, 40}) out += cache_.Has(tenant_, Joined(shared, Counting(1000, n))) ? '1' : '0';
    out += cache_.Has(tenant_, Joined(shared, Counting(2000, 10))) ? 'b' : '-';
    out += cache_.Has(tenant_, Counting(3000, 10)) ? 'c' : '-';
    out += cache_.Has(tenant_, shared) ? 's' : '-';
    return out;
  };
  EXPECT_EQ(has(), "1111bcs");
  const std::vector<std::string> expected = {"1011bcs", "0011bcs", "0011-cs", "0011-c-",
                                             "0011---", "0010---", "0000---"};
  for (const std::string& then : expected) {
    EXPECT_TRUE(cache_.Evict());
    EXPECT_EQ(has(), then);
  }
  EXPECT_FALSE(cache_.Evict());
  EXPECT_EQ(bytes_, 0);
  EXPECT_STREQ(cache_.Find(tenant_, Counting(100, 90)).what, "empty");
}

TEST_F(PrefixCacheTest, ATextGetsTheIdsThatTheModelWrote) {
  const Tokenizer& t = NanoTokenizer();
  const std::string user = "<｜User｜>", text = "Hello there, what is this?";
  // The same text with one token per character, as a model may write it.
  Ids written = t.Encode(user);
  for (const char c : text) written = Joined(written, t.Encode(std::string_view(&c, 1)));
  ASSERT_NE(written, t.Encode(user + text));
  const Ids last = {written.back()};
  Put({written.begin(), written.end() - 1}, user + "a form\n" + text, last);
  const Ids tail = t.Encode(user + "more");
  EXPECT_EQ(Encode(user + text + user + "more"), Joined(written, tail));
  EXPECT_EQ(Encode(user + "a form\n" + text + user + "more"), Joined(written, tail));
  // Only if no token can span the seam.
  EXPECT_EQ(Encode(user + text + " more"), t.Encode(user + text + " more"));
  EXPECT_EQ(Encode(user + text), t.Encode(user + text));
  // Texts stay while a cached prefix after them stays.
  Put(Joined(written, tail));
  (void)cache_.Evict();
  EXPECT_EQ(Encode(user + text + user + "more" + user), Joined(Joined(written, tail), t.Encode(user)));
  EXPECT_EQ(Encode(user + text + user + "less"), Joined(written, t.Encode(user + "less")));
  while (cache_.Evict()) {
  }
  EXPECT_EQ(Encode(user + text + user + "more"), t.Encode(user + text + user + "more"));
}

// A client may send a prompt as ids with any split of the text, even with special tokens letter by letter.
TEST_F(PrefixCacheTest, IdsOfAClientTeachNothing) {
  const Tokenizer& t = NanoTokenizer();
  const std::string text = "<｜User｜>Be brief.<｜Assistant｜>";
  Ids split = t.Encode("<｜User｜>");
  for (const char c : std::string("Be brief.")) split = Joined(split, t.Encode(std::string_view(&c, 1)));
  Put(split, "", {}, /*of_ids=*/false);
  EXPECT_EQ(Encode(text), t.Encode(text));
  Put(split);  // the same ids, by the model
  EXPECT_EQ(Encode(text), Joined(split, t.Encode("<｜Assistant｜>")));
}

TEST_F(PrefixCacheTest, ASpellingIsNoSpecialToken) {
  const Tokenizer& t = NanoTokenizer();
  const std::string text = "<｜User｜>Be brief.<｜Assistant｜>", more = "<｜User｜>";
  Put(Spelt(text));
  EXPECT_EQ(Encode(text + more), t.Encode(text + more));
}

TEST_F(PrefixCacheTest, ARealTurnDoesNotStandForContentThatSpellsIt) {
  const Tokenizer& t = NanoTokenizer();
  const std::string turn = "<｜User｜>Be brief.", next = "<｜Assistant｜>";
  Ids written = t.Encode("<｜User｜>");
  for (const char c : std::string("Be brief.")) written = Joined(written, t.Encode(std::string_view(&c, 1)));
  Put(written);
  EXPECT_EQ(Encode(turn + next), Joined(written, t.Encode(next)));
  const std::vector<TextRange> all = {{0, turn.size()}};
  const Ids as_text = Encode(turn + next, all);
  EXPECT_EQ(as_text, t.Encode(turn + next, {.literal = all}));
  EXPECT_FALSE(t.IsAdded(as_text.front()));
  EXPECT_EQ(as_text.back(), t.Encode(next).back());
}

// The encoder sees a call where the model only spelled one, or text where the model wrote a special token. Such
// conversations differ.
TEST_F(PrefixCacheTest, AFormWithOtherSpecialTokensIsNotTheSame) {
  const Tokenizer& t = NanoTokenizer();
  const std::string user = "<｜User｜>";
  Put(Joined(t.Encode(user), Spelt("｜DSML｜")), user + "｜DSML｜ ");
  EXPECT_EQ(Encode(user + "｜DSML｜ " + user), t.Encode(user + "｜DSML｜ " + user));
}

TEST_F(PrefixCacheTest, TenantsAreApart) {
  const Tokenizer& t = NanoTokenizer();
  const std::string user = "<｜User｜>";
  const Ids written = Joined(t.Encode(user), Spelt("Hello there"));
  Put(written);
  Put(Counting(100, 40));
  tenant_ = "b";
  EXPECT_STREQ(cache_.Find(tenant_, Counting(100, 41)).what, "empty");
  EXPECT_EQ(cache_.Look(tenant_, Counting(100, 41)).common, 0u);
  EXPECT_FALSE(cache_.Has(tenant_, Counting(100, 40)));
  EXPECT_EQ(Encode(user + "Hello there" + user), t.Encode(user + "Hello there" + user));
  Put(Counting(100, 20));
  EXPECT_EQ(cache_.Find(tenant_, Counting(100, 41)).snapshot->tokens().size(), 20u);
  tenant_ = "";
  EXPECT_EQ(cache_.Find(tenant_, Counting(100, 41)).snapshot->tokens().size(), 40u);
  EXPECT_EQ(Encode(user + "Hello there" + user), Joined(written, t.Encode(user)));
  // All tenants share the memory.
  EXPECT_EQ(cache_.num_in_memory(), 3);
  while (cache_.Evict()) {
  }
  EXPECT_EQ(bytes_, 0);
}

#ifdef __GLIBC__
// Few ids and texts, so nearly all of the memory belongs to the index.
TEST_F(PrefixCacheTest, AFileOnDiskTakesLittleMemory) {
  const dsv4::test::TempDir folder;
  constexpr int kFiles = 4000;
  const PrefixCacheOptions options{.disk = folder.path(), .disk_bytes = int64_t{1} << 40};
  {
    PrefixCache writer(engine_, NanoTokenizer(), metrics_, options);
    for (TokenId i = 0; i < kFiles; ++i) {
      const Ids ids = {7, 200 + i / 64, 200 + i % 64, 300, 301};
      writer.Put(tenant_, std::make_shared<FakeSnapshot>(ids, bytes_), ids, {.of_ids = true});
    }
    writer.SaveAndClear([] { return false; });
  }
  const auto before = static_cast<int64_t>(::mallinfo2().uordblks);
  const PrefixCache reader(engine_, NanoTokenizer(), metrics_, options);
  ASSERT_EQ(reader.num_on_disk(), kFiles);
  // About 580 bytes; with a map of each node's children it was 740. Allocators of memory checkers report nothing.
  EXPECT_LT(static_cast<int64_t>(::mallinfo2().uordblks) - before, 660 * kFiles);
}
#endif

TEST_F(PrefixCacheTest, AnIdWithoutTextIsNoText) {
  const TokenId beyond = static_cast<TokenId>(NanoTokenizer().vocab_size()) + 5;
  Put(Joined(NanoTokenizer().Encode("<｜User｜>Hi"), {beyond}));
  EXPECT_EQ(Encode("<｜User｜>Hi<｜User｜>"), NanoTokenizer().Encode("<｜User｜>Hi<｜User｜>"));
}

TEST(Sha256, KnownDigests) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(Sha256Hex("abc", 4), "ba78");
}

TEST(Tenants, AreOneAKeyWhereThereAreSeveral) {
  EXPECT_EQ(TenantsOf({"a"}, false), (std::vector<std::string>{""}));
  EXPECT_EQ(TenantsOf({"a", "a"}, false), (std::vector<std::string>{"", ""}));
  EXPECT_EQ(TenantsOf({"a", "b"}, true), (std::vector<std::string>{"", ""}));
  const auto tenants = TenantsOf({"a", "b"}, false);
  EXPECT_NE(tenants[0], tenants[1]);
  EXPECT_EQ(TenantsOf({"c", "b"}, false)[1], tenants[1]);  // found again among other keys
}

}  // namespace
}  // namespace dsv4::server
