// Files that violate the code's assumptions are refused with one line that names the field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <concepts>

#include "text/support.h"

namespace dsv4 {
namespace {

using test::SmallFile;
using ::testing::HasSubstr;

void ExpectRefused(const std::string& text, StatusCode code, std::string_view message) {
  const auto result = Tokenizer::FromJson(text);
  ASSERT_FALSE(result.ok()) << message;
  EXPECT_EQ(result.status().code(), code) << result.status().message();
  EXPECT_THAT(result.status().message(), HasSubstr(std::string(message)));
  EXPECT_THAT(result.status().message(), ::testing::StartsWith("tokenizer.json: "));
  EXPECT_EQ(result.status().message().find('\n'), std::string::npos);
}

template <std::invocable<SmallFile&> Change>
void ExpectRefused(const Change& change, StatusCode code, std::string_view message) {
  SmallFile file;
  change(file);
  ExpectRefused(file.Text(), code, message);
}

std::string Replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

constexpr StatusCode kOther = StatusCode::kUnsupported;
constexpr StatusCode kBad = StatusCode::kDataLoss;

TEST(TokenizerFile, RefusesTextThatIsNoObject) {
  ExpectRefused("", kBad, "not valid JSON: the text ends before a value at byte 0");
  ExpectRefused("[]", kBad, "an array, not an object");
  ExpectRefused("{\"version\": \"1.0\xFF\"}", kBad, "broken UTF-8 at byte 16");
  const std::string whole = SmallFile().Text();
  for (size_t cut = 0; cut < whole.size(); cut += 131) EXPECT_FALSE(Tokenizer::FromJson(whole.substr(0, cut)).ok());
}

TEST(TokenizerFile, RefusesOtherKindsOfTokenizer) {
  ExpectRefused([](SmallFile& f) { f.version = "\"2.0\""; }, kOther, "version is \"2.0\", expected \"1.0\"");
  ExpectRefused([](SmallFile& f) { f.truncation = "512"; }, kOther, "truncation is 512, expected null or an object");
  ExpectRefused([](SmallFile& f) { f.padding = "true"; }, kOther, "padding is true, expected null or an object");
  ExpectRefused([](SmallFile& f) { f.extra = R"(, "novelty": 1)"; }, kOther, "novelty is an unknown field");
  ExpectRefused([](SmallFile& f) { f.normalizer = R"({"type": "NFC"})"; }, kOther, "normalizer.type is \"NFC\"");
  ExpectRefused([](SmallFile& f) { f.normalizer = R"({"type": "Sequence", "normalizers": [{"type": "NFC"}]})"; },
                kOther, "normalizer.normalizers is an array, expected an empty array");
  ExpectRefused([](SmallFile& f) { f.post_processor = R"({"type": "BertProcessing"})"; }, kOther,
                "post_processor.type is \"BertProcessing\"");
  ExpectRefused([](SmallFile& f) { f.post_processor = R"({"type": "TemplateProcessing"})"; }, kOther,
                "post_processor.single is null, expected the text alone");
  constexpr std::string_view kWithBos = R"({"type": "TemplateProcessing", "single": [
      {"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]})";
  ExpectRefused([&](SmallFile& f) { f.post_processor = kWithBos; }, kOther,
                "post_processor.single is an array, expected the text alone");
  ExpectRefused(
      [&](SmallFile& f) {
        f.post_processor = R"({"type": "Sequence", "processors": [)" + std::string(kWithBos) + "]}";
      },
      kOther, "post_processor.processors[0].single is an array");
  ExpectRefused([](SmallFile& f) { f.decoder = "null"; }, kOther, "decoder is null, expected an object");
  ExpectRefused([](SmallFile& f) { f.decoder = R"({"type": "WordPiece"})"; }, kOther, "decoder.type is \"WordPiece\"");
}

// Forms that transformers and PyPI's tokenizers 0.20 to 0.23 write for the same tokenizer.
TEST(TokenizerFile, FilesThatWereWrittenAgainGiveTheSameIds) {
  constexpr std::string_view kText = "abba <think>12345 ab\n\n";
  const auto original = Tokenizer::FromJson(SmallFile().Text());
  ASSERT_TRUE(original.ok()) << original.status().message();
  const auto same = [&](const std::string& what, const auto& change) {
    SmallFile file;
    change(file);
    const auto again = Tokenizer::FromJson(file.Text());
    ASSERT_TRUE(again.ok()) << what << ": " << again.status().message();
    EXPECT_EQ((*again)->Encode(kText), (*original)->Encode(kText)) << what;
  };
  same("truncation", [](SmallFile& f) {
    f.truncation = R"({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0})";
  });
  same("padding", [](SmallFile& f) {
    f.padding = R"({"strategy": {"Fixed": 64}, "direction": "Left", "pad_to_multiple_of": 8, "pad_id": 2,
                    "pad_type_id": 0, "pad_token": "<pad>"})";
  });
  constexpr std::string_view kTemplate = R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A",
      "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
      "special_tokens": {}})";
  const std::string processors = R"({"type": "Sequence", "processors": [{"type": "ByteLevel", "add_prefix_space": true,
      "trim_offsets": false, "use_regex": true}, )" +
                                 std::string(kTemplate) + "]}";
  same("template", [&](SmallFile& f) { f.post_processor = kTemplate; });
  same("several processors", [&](SmallFile& f) { f.post_processor = processors; });
  same("no processor", [](SmallFile& f) { f.post_processor = "null"; });
  same("no normalizer", [](SmallFile& f) { f.normalizer = "null"; });
  same("new fields of the model",
       [](SmallFile& f) { f.model_flags = R"("ignore_merges": false, "byte_fallback": false)"; });
  same("merges as pairs",
       [](SmallFile& f) { f.merges = R"([["a", "b"], ["ab", "c"], ["a", "a"], ["aa", "aa"], ["Ġ", "a"]])"; });
}

TEST(TokenizerFile, RefusesOtherPreTokenizers) {
  ExpectRefused(
      [](SmallFile& f) { f.splits = SmallFile::Split(kNumberPattern) + ", " + SmallFile::Split(kCjkPattern); }, kOther,
      "pre_tokenizer.pretokenizers is an array, expected an array of three Splits");
  ExpectRefused([](SmallFile& f) { f.splits = Replaced(f.splits, "{1,3}", "{1,2}"); }, kOther,
                R"(pre_tokenizer.pretokenizers[0].pattern.Regex is "\\p{N}{1,2}", expected "\\p{N}{1,3}")");
  ExpectRefused([](SmallFile& f) { f.splits = Replaced(f.splits, "龥", "龦"); }, kOther,
                "pretokenizers[1].pattern.Regex");
  ExpectRefused([](SmallFile& f) { f.splits = Replaced(f.splits, "{|}~]", "{|}]"); }, kOther,
                "pretokenizers[2].pattern.Regex");
  ExpectRefused([](SmallFile& f) { f.splits = Replaced(f.splits, "Isolated", "Removed"); }, kOther,
                "pretokenizers[0].behavior is \"Removed\", expected \"Isolated\"");
  ExpectRefused([](SmallFile& f) { f.splits = Replaced(f.splits, "false", "true"); }, kOther,
                "pretokenizers[0].invert is true, expected false");
  ExpectRefused([](SmallFile& f) { f.splits = Replaced(f.splits, "Regex", "String"); }, kOther,
                "pretokenizers[0].pattern.String is an unknown field");
  ExpectRefused([](SmallFile& f) { f.splits = Replaced(f.splits, "\"Split\"", "\"Digits\""); }, kOther,
                "pretokenizers[0].type is \"Digits\"");
  ExpectRefused([](SmallFile& f) { f.byte_level = Replaced(f.byte_level, "false", "true"); }, kOther,
                "pretokenizers[3].add_prefix_space is true");
  ExpectRefused(
      [](SmallFile& f) { f.byte_level = Replaced(f.byte_level, "\"use_regex\": false", "\"use_regex\": true"); },
      kOther, "pretokenizers[3].use_regex is true");
}

TEST(TokenizerFile, RefusesOtherModels) {
  ExpectRefused([](SmallFile& f) { f.model_type = "\"Unigram\""; }, kOther,
                "model.type is \"Unigram\", expected \"BPE\"");
  const auto flag = [](std::string_view text, std::string_view message) {
    ExpectRefused([&](SmallFile& f) { f.model_flags = text; }, kOther, message);
  };
  flag(R"("dropout": 0.1)", "model.dropout is 0.1, expected null");
  flag(R"("unk_token": "?")", "model.unk_token is \"?\", expected null");
  flag(R"("continuing_subword_prefix": "##")", "model.continuing_subword_prefix");
  flag(R"("end_of_word_suffix": "</w>")", "model.end_of_word_suffix");
  flag(R"("fuse_unk": true)", "model.fuse_unk is true, expected false");
  flag(R"("byte_fallback": true)", "model.byte_fallback is true, expected false");
  flag(R"("ignore_merges": true)", "model.ignore_merges is true, expected false");
  flag(R"("surprise": 1)", "model.surprise is an unknown field");
}

TEST(TokenizerFile, RefusesVocabulariesThatLie) {
  const auto vocab = [](std::string_view from, std::string_view to, std::string_view message) {
    ExpectRefused([&](SmallFile& f) { f.vocab = Replaced(f.vocab, from, to); }, kBad, message);
  };
  vocab("\"ab\": 256", "\"ab\": 257", "model.vocab: two tokens have the id 257");
  vocab("\"ab\": 256", "\"ab\": 999999", "model.vocab: id 999999 leaves a gap below it");
  vocab("\"ab\": 256", "\"<think>\": 262", "no token has the id 256, but there are higher ones");
  vocab("\"ab\": 256", "\"ab\": -1", R"(model.vocab["ab"] is not a token id)");
  vocab("\"ab\": 256", "\"ab\": 1.5", R"(model.vocab["ab"] is not a token id)");
  vocab("\"ab\": 256", "\"ab\": 99999999999999999999", R"(model.vocab["ab"] is not a token id)");
  vocab("\"ab\": 256", "\"ab\": 256, \"ab\": 256", "model.vocab holds a token twice");
  vocab("\"ab\": 256", "\"a b\": 256", R"(model.vocab: "a b" is not in the byte-level alphabet)");
  vocab("\"ab\": 256", "\"\": 256", "model.vocab holds an empty token");
  vocab("\"ab\": 256", "\"<think>\": 256", R"(model.vocab gives "<think>" the id 256, added_tokens 262)");
  vocab("\"A\": 65", "\"AAA\": 65", "model.vocab lacks the token of the single byte 65");
  ExpectRefused([](SmallFile& f) { f.vocab = "[]"; }, kOther, "model.vocab is an array, expected an object");
}

TEST(TokenizerFile, RefusesMergesThatLie) {
  const auto merges = [](std::string_view text, StatusCode code, std::string_view message) {
    ExpectRefused([&](SmallFile& f) { f.merges = text; }, code, message);
  };
  merges(R"("a b")", kOther, "model.merges is \"a b\", expected an array");
  merges(R"(["a b", "ab"])", kOther, "model.merges[1] is \"ab\", expected \"left right\"");
  merges(R"(["a b c"])", kOther, "model.merges[0]");
  merges(R"([["a"]])", kOther, "model.merges[0]");
  merges(R"([["a", 1]])", kOther, "model.merges[0]");
  merges(R"(["a b", "x y"])", kBad, R"(model.merges[1]: no token "xy" in model.vocab)");
  merges(R"(["q zz"])", kBad, R"(model.merges[0]: no token "zz" in model.vocab)");
  merges(R"(["a b", "a a", "a b"])", kBad, "model.merges[2] repeats an earlier merge");
}

TEST(TokenizerFile, RefusesAddedTokensThatLie) {
  const auto added = [](std::string_view from, std::string_view to, StatusCode code, std::string_view message) {
    ExpectRefused([&](SmallFile& f) { f.added_tokens = Replaced(f.added_tokens, from, to); }, code, message);
  };
  added("262", "261", kBad, "added_tokens: two tokens have the id 261");
  added("262", "100", kBad, "model.vocab: two tokens have the id 100");
  added("262", "1000", kBad, "added_tokens: id 1000 leaves a gap below it");
  added("262", "-5", kOther, "added_tokens[1].id is -5, expected a token id");
  added("<think>>", "<think>", kBad, "added_tokens: \"<think>\" occurs twice");
  added("\"<think>\"", "\"\"", kOther, "added_tokens[1].content is \"\", expected a text");
  added("\"single_word\": false", "\"single_word\": true", kOther,
        "added_tokens[0].single_word is true, expected false");
  added("\"lstrip\": false", "\"lstrip\": true", kOther, "added_tokens[0].lstrip is true, expected false");
  added("\"rstrip\": false", "\"rstrip\": true", kOther, "added_tokens[0].rstrip is true, expected false");
  added("\"special\": true", "\"special\": 1", kOther, "added_tokens[0].special is 1, expected true or false");
  added("\"normalized\": false", "\"normalized\": null", kOther, "added_tokens[0].normalized is null");
  ExpectRefused([](SmallFile& f) { f.added_tokens = "{}"; }, kOther, "added_tokens is an object, expected an array");
}

}  // namespace
}  // namespace dsv4
