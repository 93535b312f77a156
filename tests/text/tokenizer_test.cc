// A small tokenizer made in memory.
#include "dsv4/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <random>

#include "text/support.h"

namespace dsv4 {
namespace {

using test::SmallFile;
using Ids = std::vector<TokenId>;

std::unique_ptr<Tokenizer> Small() {
  auto tokenizer = Tokenizer::FromJson(SmallFile().Text());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

TEST(Tokenizer, MergesLowestRankFirstThenLeftmost) {
  const auto t = Small();
  EXPECT_EQ(t->vocab_size(), 265);
  EXPECT_EQ(t->Encode(""), Ids{});
  EXPECT_EQ(t->Encode("abc"), (Ids{257}));
  EXPECT_EQ(t->Encode("aab"), (Ids{'a', 256}));  // "a b" has the lower rank
  EXPECT_EQ(t->Encode("aaa"), (Ids{258, 'a'}));  // of two positions the left one
  EXPECT_EQ(t->Encode("aaaaa"), (Ids{259, 'a'}));
  EXPECT_EQ(t->Encode("aaaaaa"), (Ids{259, 258}));
  EXPECT_EQ(t->Encode("x a"), (Ids{'x', 260}));
}

TEST(Tokenizer, MergesAsPairs) {
  SmallFile file;
  file.merges = R"([["a", "b"], ["ab", "c"], ["a", "a"], ["aa", "aa"], ["Ġ", "a"]])";
  const auto t = Tokenizer::FromJson(file.Text());
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ((*t)->Encode("aab abc"), Small()->Encode("aab abc"));
}

TEST(Tokenizer, AcceptsAbsentOptionalParts) {
  SmallFile file;
  file.normalizer = file.post_processor = "null";
  file.model_flags = R"("ignore_merges": false, "continuing_subword_prefix": "", "end_of_word_suffix": "")";
  EXPECT_TRUE(Tokenizer::FromJson(file.Text()).ok());
}

TEST(Tokenizer, AddedTokensAreLeftmostLongestInTwoPasses) {
  const auto t = Small();
  EXPECT_EQ(t->Encode("<think>"), (Ids{262}));
  EXPECT_EQ(t->Encode("<think>>"), (Ids{263}));
  EXPECT_EQ(t->Encode("<think>>>"), (Ids{263, '>'}));
  EXPECT_EQ(t->Encode("a<s>b"), (Ids{'a', 261, 'b'}));
  EXPECT_EQ(t->Encode("<thin<think>"), (Ids{'<', 't', 'h', 'i', 'n', 262}));
  // "k><s" begins further left, but "<s>" has normalized: false and is matched first.
  EXPECT_EQ(t->Encode("k><s>"), (Ids{'k', '>', 261}));
  EXPECT_EQ(t->Encode("k><sx"), (Ids{264, 'x'}));
  EXPECT_EQ(t->Encode("<s>", {.recognize_added_tokens = false}), (Ids{'<', 's', '>'}));
}

TEST(Tokenizer, SpellingsInLiteralPartsAreText) {
  const auto t = Small();
  const auto encode = [&](std::string_view text, std::vector<TextRange> literal) {
    return t->Encode(text, {.literal = literal});
  };
  const Ids spelt = {'<', 's', '>'};
  EXPECT_EQ(encode("<s><s>", {{3, 6}}), (Ids{261, '<', 's', '>'}));
  EXPECT_EQ(encode("<s><s>", {{0, 3}}), (Ids{'<', 's', '>', 261}));
  // A token that overlaps a literal part is text. A token that spans two parts is text, too.
  EXPECT_EQ(encode("<s>", {{0, 1}}), spelt);
  EXPECT_EQ(encode("<s>", {{2, 3}}), spelt);
  EXPECT_EQ(encode("<s>", {{0, 2}, {2, 3}}), spelt);
  EXPECT_EQ(encode("<s>", {{3, 3}}), (Ids{261}));
  // After a refused token the next one may begin inside it.
  EXPECT_EQ(encode("<<s>", {{0, 1}}), (Ids{'<', 261}));
  EXPECT_EQ(encode("k><s>", {{0, 1}}), (Ids{'k', '>', 261}));
  // Tokens of both passes.
  EXPECT_EQ(encode("k><sx", {{4, 5}}), (Ids{264, 'x'}));
  EXPECT_EQ(encode("k><sx", {{0, 1}}), (Ids{'k', '>', '<', 's', 'x'}));
  // Ranges move with repaired text before them: a broken byte becomes three.
  const std::vector<TextRange> behind = {{1, 4}};
  EXPECT_EQ(t->Encode("\xFF<s><s>", {.literal = behind}),
            t->Encode("\xEF\xBF\xBD<s><s>", {.literal = std::vector<TextRange>{{3, 6}}}));
  EXPECT_EQ(t->Encode("\xFF<s><s>", {.literal = behind}).back(), 261);
  const auto places = t->FindAddedTokens("a<s>k><sx<s>", {.literal = std::vector<TextRange>{{9, 12}}});
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places[0].range, (TextRange{1, 4}));
  EXPECT_EQ(places[1].id, 264);
}

// As many parts as a client's chat has messages: each gap between added tokens begins at the end of the previous one.
TEST(Tokenizer, ManyLiteralPartsTakeTimeInProportion) {
  const auto t = Small();
  constexpr size_t kParts = 300'000;
  std::string text;
  std::vector<TextRange> literal;
  for (size_t i = 0; i < kParts; ++i) {
    text += "<s><think>x";
    literal.push_back({text.size() - 1, text.size()});
  }
  const std::clock_t start = std::clock();  // time of this process, because others may use the core
  EXPECT_EQ(t->FindAddedTokens(text, {.literal = literal}).size(), 2 * kParts);
  EXPECT_LT(std::clock() - start, 5 * CLOCKS_PER_SEC);  // quadratic code would need half a minute
}

// A model may have more ids than its tokenizer.
TEST(Tokenizer, IdsOutsideTheVocabularyHaveNoText) {
  const auto t = Small();
  for (const TokenId id : {static_cast<TokenId>(t->vocab_size()), TokenId{-1}, TokenId{1 << 30}}) {
    EXPECT_EQ(t->TokenBytes(id), "");
    EXPECT_FALSE(t->IsAdded(id));
    EXPECT_FALSE(t->IsSpecial(id));
    StreamDecoder decoder(*t);
    EXPECT_EQ(decoder.Push('a').value(), "a");
    EXPECT_EQ(decoder.Push(id).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(decoder.Push('b').value(), "b");
  }
}

TEST(Tokenizer, BrokenUtf8IsReadAsReplacementCharacters) {
  const auto t = Small();
  const auto same = [&](std::string_view broken, std::string_view repaired) {
    EXPECT_EQ(t->Encode(broken), t->Encode(repaired)) << test::Quote(repaired);
  };
  same("a\xFFz", "a\uFFFDz");
  same("\xE4\xB8", "\uFFFD");                            // cut at the end: one
  same("\xE4\xB8z", "\uFFFDz");                          // maximal broken part: one
  same("\xC0\x80", "\uFFFD\uFFFD");                      // overlong
  same("\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD");            // surrogate
  same("\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD");  // above U+10FFFF
  same("\xF0\x9F\x99", "\uFFFD");
}

TEST(Tokenizer, DecodesHalvesOfCharacters) {
  const auto t = Small();
  EXPECT_EQ(*t->Decode(Ids{0xE4, 0xB8, 0xAD}), "中");
  EXPECT_EQ(*t->Decode(Ids{0xE4, 0xB8}), "\uFFFD");
  EXPECT_EQ(*t->Decode(Ids{0xE4, 'x'}), "\uFFFDx");
  EXPECT_EQ(*t->Decode(Ids{261, 'x'}, {.skip_special = true}), "x");
  EXPECT_EQ(t->Decode(Ids{265}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(t->Decode(Ids{-1}).status().code(), StatusCode::kInvalidArgument);
}

TEST(StreamDecoder, HandsOutWholeCharactersOnly) {
  const auto t = Small();
  StreamDecoder decoder(*t);
  EXPECT_EQ(*decoder.Push(0xF0), "");
  EXPECT_EQ(*decoder.Push(0x9F), "");
  EXPECT_EQ(*decoder.Push(0x99), "");
  EXPECT_EQ(*decoder.Push(0x82), "🙂");
  EXPECT_EQ(decoder.Finish(), "");
  EXPECT_EQ(*decoder.Push(0xE4), "");
  EXPECT_EQ(*decoder.Push('x'), "\uFFFDx");  // certainly broken when the x arrives
  EXPECT_EQ(*decoder.Push(0xE4), "");
  EXPECT_EQ(*decoder.Push(0xB8), "");
  EXPECT_EQ(decoder.Finish(), "\uFFFD");
  EXPECT_EQ(decoder.Push(1000).status().code(), StatusCode::kInvalidArgument);
  StreamDecoder hiding(*t, {.skip_special = true});
  EXPECT_EQ(*hiding.Push(261), "");
}

TEST(StreamDecoder, JoinedEqualsDecode) {
  const auto t = Small();
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    Ids ids;
    for (unsigned n = random() % 12; n > 0; --n) ids.push_back(static_cast<TokenId>(random() % 265));
    StreamDecoder decoder(*t);
    std::string streamed;
    for (const TokenId id : ids) streamed += *decoder.Push(id);
    ASSERT_EQ(streamed + decoder.Finish(), *t->Decode(ids));
  }
}

TEST(Tokenizer, RoundTripsAnyBytesThatAreUtf8) {
  const auto t = Small();
  std::string text;
  for (uint32_t code = 0; code <= 0x10FFFF; code += 37) {
    if (code < 0xD800 || code > 0xDFFF) text += *t->Decode(t->Encode(std::string(1, static_cast<char>(code & 0x7F))));
  }
  EXPECT_EQ(*t->Decode(t->Encode(text)), text);
}

TEST(Tokenizer, ConfigNamesBosAndEos) {
  const auto with = [](std::string_view config) { return Tokenizer::FromJson(SmallFile().Text(), config); };
  auto t = with(
      R"({"bos_token": "<s>", "eos_token": {"content": "<think>", "lstrip": false}, "add_bos_token": false})");
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ((*t)->bos_token_id(), 261);
  EXPECT_EQ((*t)->eos_token_id(), 262);
  EXPECT_EQ((*with("{}"))->bos_token_id(), -1);
  const auto refused = [&](std::string_view config, std::string_view message) {
    const auto result = with(config);
    ASSERT_FALSE(result.ok()) << config;
    EXPECT_THAT(result.status().message(), ::testing::HasSubstr(std::string(message)));
  };
  refused(R"({"add_bos_token": true})", "tokenizer_config.json: add_bos_token is true, expected false");
  refused(R"({"add_eos_token": true})", "add_eos_token");
  refused(R"({"bos_token": "<nope>"})", "bos_token \"<nope>\" is not among the added tokens");
  refused(R"({"bos_token": 3})", "bos_token is 3, expected a token's text");
  refused(R"([])", "an array, not an object");
  refused(R"({)", "not valid JSON");
}

TEST(Tokenizer, LoadsFromAFolder) {
  const test::TempDir temp;
  const std::filesystem::path& dir = temp.path();
  EXPECT_EQ(Tokenizer::Load(dir).status().code(), StatusCode::kNotFound);
  std::ofstream(dir / "tokenizer.json") << SmallFile().Text();
  EXPECT_TRUE(Tokenizer::Load(dir).ok());
  std::ofstream(dir / "tokenizer_config.json") << R"({"eos_token": "<s>"})";
  EXPECT_EQ((*Tokenizer::Load(dir))->eos_token_id(), 261);
  std::ofstream(dir / "tokenizer_config.json") << R"({"eos_token": "<)";
  EXPECT_THAT(Tokenizer::Load(dir).status().message(), ::testing::HasSubstr((dir / "tokenizer_config.json").string()));
}

}  // namespace
}  // namespace dsv4
