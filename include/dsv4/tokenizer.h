// Tokenizer: text to token ids and back, exactly as the model's tokenizer.json says (byte-level BPE).
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

#include "dsv4/status.h"
#include "dsv4/types.h"

namespace dsv4 {

// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0, end = 0;
  bool operator==(const TextRange&) const = default;
};

struct EncodeOptions {
  // Spellings of added tokens ("<think>", "<｜User｜>", ...) become their ids. Off: they are ordinary text,
  // which is how text that nobody vouches for can be kept from forging turns.
  bool recognize_added_tokens = true;
  // The same for parts of a text, in order and apart from each other: a spelling that touches one is ordinary text.
  std::span<const TextRange> literal = {};
};

// Where the spelling of an added token stands in a text.
struct AddedTokenPlace {
  TextRange range;
  TokenId id = -1;
};

struct DecodeOptions {
  // Leaves out tokens whose "special" flag is set (BOS, EOS, padding, place holders). "<think>", "<｜User｜>"
  // and "｜DSML｜" are added tokens without that flag and stay.
  bool skip_special = false;
};

// Immutable after loading; any number of threads may use one.
class Tokenizer {
 public:
  // Reads model_dir/tokenizer.json and, where present, tokenizer_config.json (names of BOS and EOS).
  // Everything that the code relies on is checked. Errors name the file and the field: kNotFound (no such
  // file), kDataLoss (damaged or contradictory), kUnsupported (a valid tokenizer, but of another kind).
  static Result<std::unique_ptr<Tokenizer>> Load(const std::string& model_dir);

  // The same from the files' text; an empty config_json stands for a missing file.
  static Result<std::unique_ptr<Tokenizer>> FromJson(std::string_view tokenizer_json,
                                                     std::string_view config_json = {});

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Ids are 0 .. vocab_size() - 1 without a gap.
  int64_t vocab_size() const;

  // Never adds a token (no BOS): the chat encoding writes BOS as text. Text that is not valid UTF-8 is read
  // as if each maximal broken part were U+FFFD, as Python's decode(errors="replace") does. A text has less
  // than 4 GiB.
  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions& options = {}) const;

  // The added tokens that Encode makes of the text's spellings, in order. The text must be valid UTF-8.
  std::vector<AddedTokenPlace> FindAddedTokens(std::string_view text, const EncodeOptions& options = {}) const;

  // Always valid UTF-8: tokens may hold half a character, and what stays broken after joining becomes U+FFFD.
  // Error: kInvalidArgument for an id outside the vocabulary.
  Result<std::string> Decode(std::span<const TokenId> ids, const DecodeOptions& options = {}) const;

  // The bytes that one token stands for (perhaps half a character); none for an id outside the vocabulary: a model may
  // have more ids than its tokenizer.
  std::string_view TokenBytes(TokenId id) const;

  // The id of the token that stands for exactly these bytes; added tokens come first.
  std::optional<TokenId> FindToken(std::string_view bytes) const;

  bool IsValid(TokenId id) const { return id >= 0 && id < vocab_size(); }
  bool IsAdded(TokenId id) const;
  bool IsSpecial(TokenId id) const;  // has the "special" flag

  // From tokenizer_config.json; -1 where it names none (or does not exist).
  TokenId bos_token_id() const;
  TokenId eos_token_id() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// Ids to text while they are generated: hands out complete UTF-8 only and holds back the beginning of a
// character. All texts joined equal Tokenizer::Decode of all ids. The tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, const DecodeOptions& options = {});

  // Text that became certain with this token; often empty. Error: kInvalidArgument for an id outside the
  // vocabulary; whoever goes on loses nothing.
  Result<std::string> Push(TokenId id);

  // What was held back: "" or, for the beginning of a character that never ended, U+FFFD. Ready for a new
  // text after.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  DecodeOptions options_;
  std::string held_;
};

}  // namespace dsv4
