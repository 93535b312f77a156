// Tokenizer: converts text to token ids and back, exactly as defined by the model's tokenizer.json (byte-level BPE).
//
//   auto tokenizer = dsv4::Tokenizer::Load("models/nano");
//   std::vector<dsv4::TokenId> ids = (*tokenizer)->Encode("Hello");
//   dsv4::StreamDecoder decoder(**tokenizer);
//   for (TokenId id : ids) std::cout << *decoder.Push(id);
//   std::cout << decoder.Finish();
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/export.h"
#include "dsv4/status.h"
#include "dsv4/types.h"

namespace dsv4 {

// Byte range [begin, end) of a text.
struct TextRange {
  size_t begin = 0, end = 0;
  bool operator==(const TextRange&) const = default;
};

struct EncodeOptions {
  // true: the text of an added token ("<think>", "<｜User｜>", ...) becomes its id. false: it stays ordinary text, so
  // that untrusted text cannot forge turns.
  bool recognize_added_tokens = true;
  // Ranges in which added tokens are not recognized: text of an added token that overlaps a range is ordinary text.
  // Requires ranges in order that do not overlap.
  std::span<const TextRange> literal = {};
};

// An added token in a text.
struct AddedTokenMatch {
  TextRange range;
  TokenId id = -1;
};

struct DecodeOptions {
  // Omits tokens with the flag "special" (BOS, EOS, padding, placeholders). Keeps "<think>", "<｜User｜>" and "｜DSML｜",
  // which are added tokens without the flag.
  bool skip_special = false;
};

// Immutable and thread-safe after loading.
class DSV4_API Tokenizer {
 public:
  // Reads model_dir/tokenizer.json and, if it exists, model_dir/tokenizer_config.json (names of BOS and EOS). Checks
  // everything that the code relies on. Errors name the file and the field: kNotFound (no such file), kDataLoss
  // (damaged or contradictory), kUnsupported (a valid tokenizer of another kind).
  static Result<std::unique_ptr<Tokenizer>> Load(const std::string& model_dir);

  // The same from the text of the files. Empty `config_json`: no tokenizer_config.json.
  static Result<std::unique_ptr<Tokenizer>> FromJson(std::string_view tokenizer_json,
                                                     std::string_view config_json = {});

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The ids are 0 to vocab_size() - 1, without gaps.
  int64_t vocab_size() const;

  // Returns the token ids of `text`. Adds no token, not even BOS: the chat encoding writes BOS as text. Replaces each
  // maximal invalid part of the UTF-8 text by U+FFFD, as Python's decode(errors="replace") does. Requires a text of
  // less than 4 GiB.
  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions& options = {}) const;

  // Returns the added tokens that Encode recognizes in `text`, in order. Requires valid UTF-8.
  std::vector<AddedTokenMatch> FindAddedTokens(std::string_view text, const EncodeOptions& options = {}) const;

  // Returns the text of `ids`, as valid UTF-8. A token may contain part of a character; bytes that are invalid after
  // all tokens are joined become U+FFFD. Error: kInvalidArgument (an id outside the vocabulary).
  Result<std::string> Decode(std::span<const TokenId> ids, const DecodeOptions& options = {}) const;

  // Returns the bytes of one token, possibly part of a character. Returns "" for an id outside the vocabulary, because
  // a model may have more ids than its tokenizer.
  std::string_view TokenBytes(TokenId id) const;

  // Returns the id of the token with exactly these bytes. Searches the added tokens first.
  std::optional<TokenId> FindToken(std::string_view bytes) const;

  bool IsValid(TokenId id) const { return id >= 0 && id < vocab_size(); }
  bool IsAdded(TokenId id) const;
  bool IsSpecial(TokenId id) const;  // has the "special" flag

  // From tokenizer_config.json; -1: not defined there, or no such file.
  TokenId bos_token_id() const;
  TokenId eos_token_id() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// Decodes ids while they are generated. Returns complete characters only and holds back the beginning of a character.
// The returned texts, joined, equal Tokenizer::Decode of all ids. The tokenizer must outlive the decoder.
class DSV4_API StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, const DecodeOptions& options = {});

  // Returns the text that this token completes; often "". Error: kInvalidArgument (an id outside the vocabulary), after
  // which the decoder is unchanged and can be used.
  Result<std::string> Push(TokenId id);

  // Ends the text. Returns "", or U+FFFD if an incomplete character was held back. The decoder can then decode a new
  // text.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  DecodeOptions options_;
  std::string held_;
};

}  // namespace dsv4
