#include "text/tokenizer_file.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/str.h"
#include "text/json_value.h"
#include "text/pre_tokenizer.h"

namespace dsv4 {

namespace {

using Kind = JsonValue::Kind;

const JsonValue& NullJson() {
  static const JsonValue null;
  return null;
}

// A value with its path for messages. A missing member reads as null.
struct Field {
  const JsonValue& value;
  std::string path;

  Field Get(std::string_view key) const {
    const JsonValue* member = value.Find(key);
    return {member != nullptr ? *member : NullJson(), path.empty() ? std::string(key) : StrCat(path, ".", key)};
  }
  Field At(size_t i) const { return {value.items[i], StrCat(path, "[", i, "]")}; }

  Status Expect(bool condition, std::string_view expected) const {
    if (condition) return {};
    std::string found = value.is_object() || value.is_array() ? std::string(JsonKindName(value)) : DumpJson(value);
    if (found.size() > 200) found = found.substr(0, 200) + "...";
    return Unsupported(StrCat(path, " is ", found, ", expected ", expected));
  }
  Status ExpectNull() const { return Expect(value.is_null(), "null"); }
  Status ExpectBool() const { return Expect(value.is_bool(), "true or false"); }
  Status ExpectFalse() const { return Expect(value.is(Kind::kFalse), "false"); }
  Status ExpectFalseOrNone() const { return Expect(value.is(Kind::kFalse) || value.is_null(), "false"); }
  Status ExpectText(std::string_view text) const {
    return Expect(value.is_string() && value.text == text,
                  DumpJson({.kind = Kind::kString, .text = std::string(text)}));
  }
  Status ExpectNothing() const {
    return Expect(value.is_null() || (value.is_string() && value.text.empty()), "null or an empty string");
  }
  // An object with no other members than these.
  Status ExpectMembers(std::initializer_list<std::string_view> names) const {
    DSV4_RETURN_IF_ERROR(Expect(value.is_object(), "an object"));
    for (const JsonMember& member : value.members) {
      if (std::find(names.begin(), names.end(), member.key) == names.end()) {
        return Unsupported(StrCat(path, path.empty() ? "" : ".", member.key, " is an unknown field"));
      }
    }
    return {};
  }
};

Result<TokenId> ReadId(const Field& field) {
  const int64_t id = JsonToIndex(field.value);
  DSV4_RETURN_IF_ERROR(field.Expect(id >= 0 && id < std::numeric_limits<TokenId>::max(), "a token id"));
  return static_cast<TokenId>(id);
}

Status CheckNormalizer(const Field& field) {
  if (field.value.is_null()) return {};
  DSV4_RETURN_IF_ERROR(field.ExpectMembers({"type", "normalizers"}));
  DSV4_RETURN_IF_ERROR(field.Get("type").ExpectText("Sequence"));
  const Field list = field.Get("normalizers");
  return list.Expect(list.value.is_array() && list.value.items.empty(), "an empty array (text is not normalised)");
}

Status CheckPreTokenizer(const Field& field) {
  DSV4_RETURN_IF_ERROR(field.ExpectMembers({"type", "pretokenizers"}));
  DSV4_RETURN_IF_ERROR(field.Get("type").ExpectText("Sequence"));
  static constexpr std::array kPatterns = {kNumberPattern, kCjkPattern, kWordPattern};
  const Field list = field.Get("pretokenizers");
  DSV4_RETURN_IF_ERROR(list.Expect(list.value.is_array() && list.value.items.size() == kPatterns.size() + 1,
                                   "an array of three Splits and one ByteLevel"));
  for (size_t i = 0; i < kPatterns.size(); ++i) {
    const Field split = list.At(i);
    DSV4_RETURN_IF_ERROR(split.ExpectMembers({"type", "pattern", "behavior", "invert"}));
    DSV4_RETURN_IF_ERROR(split.Get("type").ExpectText("Split"));
    DSV4_RETURN_IF_ERROR(split.Get("pattern").ExpectMembers({"Regex"}));
    DSV4_RETURN_IF_ERROR(split.Get("pattern").Get("Regex").ExpectText(kPatterns[i]));
    DSV4_RETURN_IF_ERROR(split.Get("behavior").ExpectText("Isolated"));
    DSV4_RETURN_IF_ERROR(split.Get("invert").ExpectFalse());
  }
  const Field bytes = list.At(kPatterns.size());
  DSV4_RETURN_IF_ERROR(bytes.ExpectMembers({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  DSV4_RETURN_IF_ERROR(bytes.Get("type").ExpectText("ByteLevel"));
  DSV4_RETURN_IF_ERROR(bytes.Get("add_prefix_space").ExpectFalse());
  DSV4_RETURN_IF_ERROR(bytes.Get("trim_offsets").ExpectBool());  // offsets only
  return bytes.Get("use_regex").ExpectFalse();
}

// As post-processor and as decoder, ByteLevel ignores its flags for ids and text.
Status CheckByteLevel(const Field& field) {
  DSV4_RETURN_IF_ERROR(field.ExpectMembers({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  return field.Get("type").ExpectText("ByteLevel");
}

// A template that adds no token to a text. The one for pairs of texts is not used.
Status CheckTemplate(const Field& field) {
  DSV4_RETURN_IF_ERROR(field.ExpectMembers({"type", "single", "pair", "special_tokens"}));
  const Field single = field.Get("single");
  const auto is_text = [](const JsonValue& item) {
    return item.Find("Sequence") != nullptr && item.members.size() == 1;
  };
  const bool plain = single.value.is_array() && single.value.items.size() == 1 && is_text(single.value.items[0]);
  return single.Expect(plain, "the text alone (the prompt's special tokens are not the tokenizer's)");
}

// Null, or steps that change no id: files that other programs have written again have several forms of them.
Status CheckPostProcessor(const Field& field) {
  if (field.value.is_null()) return {};
  const Field type = field.Get("type");
  if (type.value.text == "TemplateProcessing") return CheckTemplate(field);
  if (type.value.text != "Sequence") return CheckByteLevel(field);
  DSV4_RETURN_IF_ERROR(field.ExpectMembers({"type", "processors"}));
  const Field list = field.Get("processors");
  DSV4_RETURN_IF_ERROR(list.Expect(list.value.is_array(), "an array"));
  for (size_t i = 0; i < list.value.items.size(); ++i) {
    const Field step = list.At(i);
    const bool is_template = step.Get("type").value.text == "TemplateProcessing";
    DSV4_RETURN_IF_ERROR(is_template ? CheckTemplate(step) : CheckByteLevel(step));
  }
  return {};
}

Result<std::vector<AddedToken>> ReadAddedTokens(const Field& field) {
  std::vector<AddedToken> tokens;
  DSV4_RETURN_IF_ERROR(field.Expect(field.value.is_array() || field.value.is_null(), "an array"));
  for (size_t i = 0; i < field.value.items.size(); ++i) {
    const Field entry = field.At(i);
    DSV4_RETURN_IF_ERROR(
        entry.ExpectMembers({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
    DSV4_ASSIGN_OR_RETURN(const TokenId id, ReadId(entry.Get("id")));
    const Field content = entry.Get("content");
    DSV4_RETURN_IF_ERROR(content.Expect(content.value.is_string() && !content.value.text.empty(), "a text"));
    for (const std::string_view flag : {"single_word", "lstrip", "rstrip"}) {
      DSV4_RETURN_IF_ERROR(entry.Get(flag).ExpectFalse());
    }
    DSV4_RETURN_IF_ERROR(entry.Get("special").ExpectBool());
    DSV4_RETURN_IF_ERROR(entry.Get("normalized").ExpectBool());
    tokens.push_back({id, content.value.text, entry.Get("special").value.is(Kind::kTrue),
                      entry.Get("normalized").value.is(Kind::kTrue)});
  }
  return tokens;
}

// A merge is "left right" or ["left", "right"].
Status ReadMerge(const Field& field, std::pair<std::string, std::string>* merge) {
  const JsonValue& value = field.value;
  if (value.is_string()) {
    const size_t space = value.text.find(' ');
    *merge = {value.text.substr(0, space), space == std::string::npos ? "" : value.text.substr(space + 1)};
  } else if (value.is_array() && value.items.size() == 2 && value.items[0].is_string() && value.items[1].is_string()) {
    *merge = {value.items[0].text, value.items[1].text};
  }
  return field.Expect(!merge->first.empty() && !merge->second.empty() && merge->second.find(' ') == std::string::npos,
                      "\"left right\" or [\"left\", \"right\"]");
}

Status ReadModel(const Field& field, TokenizerFile* file) {
  DSV4_RETURN_IF_ERROR(
      field.ExpectMembers({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                           "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
  DSV4_RETURN_IF_ERROR(field.Get("type").ExpectText("BPE"));
  DSV4_RETURN_IF_ERROR(field.Get("dropout").ExpectNull());
  DSV4_RETURN_IF_ERROR(field.Get("unk_token").ExpectNull());
  DSV4_RETURN_IF_ERROR(field.Get("continuing_subword_prefix").ExpectNothing());
  DSV4_RETURN_IF_ERROR(field.Get("end_of_word_suffix").ExpectNothing());
  DSV4_RETURN_IF_ERROR(field.Get("fuse_unk").ExpectFalseOrNone());
  DSV4_RETURN_IF_ERROR(field.Get("byte_fallback").ExpectFalseOrNone());
  DSV4_RETURN_IF_ERROR(field.Get("ignore_merges").ExpectFalseOrNone());

  const Field vocab = field.Get("vocab");
  DSV4_RETURN_IF_ERROR(vocab.Expect(vocab.value.is_object(), "an object"));
  if (vocab.value.repeated_keys) return DataLoss("model.vocab holds a token twice");
  file->vocab.reserve(vocab.value.members.size());
  for (const JsonMember& member : vocab.value.members) {
    if (member.key.empty()) return DataLoss("model.vocab holds an empty token");
    const int64_t id = JsonToIndex(member.value);
    if (id < 0 || id >= std::numeric_limits<TokenId>::max()) {
      return DataLoss(
          StrCat("model.vocab[", DumpJson({.kind = Kind::kString, .text = member.key}), "] is not a token id"));
    }
    file->vocab.emplace_back(member.key, static_cast<TokenId>(id));
  }

  const Field merges = field.Get("merges");
  DSV4_RETURN_IF_ERROR(merges.Expect(merges.value.is_array(), "an array"));
  file->merges.resize(merges.value.items.size());
  for (size_t i = 0; i < file->merges.size(); ++i) {
    DSV4_RETURN_IF_ERROR(ReadMerge(merges.At(i), &file->merges[i]));
  }
  return {};
}

// A token of tokenizer_config.json: null, a text, or an object with the text in "content".
Status ReadConfigToken(const Field& field, std::string* token) {
  if (field.value.is_null()) return {};
  const Field text = field.value.is_object() ? field.Get("content") : field;
  DSV4_RETURN_IF_ERROR(text.Expect(text.value.is_string(), "a token's text"));
  *token = text.value.text;
  return {};
}

Result<JsonValue> ParseFile(std::string_view json) {
  Result<JsonValue> root = ParseJsonValue(json);
  if (!root.ok()) return DataLoss(root.status().message());
  return root;
}

}  // namespace

Result<TokenizerFile> ReadTokenizerFile(std::string_view json) {
  DSV4_ASSIGN_OR_RETURN(const JsonValue value, ParseFile(json));
  if (!value.is_object()) return DataLoss(StrCat("the file holds ", JsonKindName(value), ", not an object"));
  const Field root{value, ""};
  DSV4_RETURN_IF_ERROR(root.ExpectMembers({"version", "truncation", "padding", "added_tokens", "normalizer",
                                           "pre_tokenizer", "post_processor", "decoder", "model"}));
  DSV4_RETURN_IF_ERROR(root.Get("version").ExpectText("1.0"));
  for (const std::string_view batch : {"truncation", "padding"}) {  // what a caller does with batches, not with a text
    const Field field = root.Get(batch);
    DSV4_RETURN_IF_ERROR(field.Expect(field.value.is_null() || field.value.is_object(), "null or an object"));
  }
  DSV4_RETURN_IF_ERROR(CheckNormalizer(root.Get("normalizer")));
  DSV4_RETURN_IF_ERROR(CheckPreTokenizer(root.Get("pre_tokenizer")));
  DSV4_RETURN_IF_ERROR(CheckPostProcessor(root.Get("post_processor")));
  DSV4_RETURN_IF_ERROR(CheckByteLevel(root.Get("decoder")));
  TokenizerFile file;
  DSV4_ASSIGN_OR_RETURN(file.added_tokens, ReadAddedTokens(root.Get("added_tokens")));
  DSV4_RETURN_IF_ERROR(ReadModel(root.Get("model"), &file));
  return file;
}

Result<TokenizerConfig> ReadTokenizerConfig(std::string_view json) {
  DSV4_ASSIGN_OR_RETURN(const JsonValue value, ParseFile(json));
  if (!value.is_object()) return DataLoss(StrCat("the file holds ", JsonKindName(value), ", not an object"));
  const Field root{value, ""};
  // The chat encoding writes BOS itself, so a tokenizer that also adds it is refused.
  DSV4_RETURN_IF_ERROR(root.Get("add_bos_token").ExpectFalseOrNone());
  DSV4_RETURN_IF_ERROR(root.Get("add_eos_token").ExpectFalseOrNone());
  TokenizerConfig config;
  DSV4_RETURN_IF_ERROR(ReadConfigToken(root.Get("bos_token"), &config.bos_token));
  DSV4_RETURN_IF_ERROR(ReadConfigToken(root.Get("eos_token"), &config.eos_token));
  return config;
}

}  // namespace dsv4
