#include "dsv4/tokenizer.h"

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/file.h"
#include "base/str.h"
#include "text/bpe.h"
#include "text/byte_level.h"
#include "text/json_value.h"
#include "text/pre_tokenizer.h"
#include "text/token_finder.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"

namespace dsv4 {

namespace {

constexpr int64_t kMaxFileBytes = int64_t{256} << 20;

enum class TokenKind : uint8_t { kNone, kOrdinary, kAdded, kSpecial };

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  AppendJsonEscaped(text.substr(0, 200), &out);
  return out + "\"";
}

// Repairs the ranges and the texts between them separately with RepairUtf8, so that the ranges stay correct.
std::string RepairWithRanges(std::string_view text, std::vector<TextRange>* ranges) {
  std::string out;
  size_t at = 0;
  for (TextRange& range : *ranges) {
    out += RepairUtf8(text.substr(at, range.begin - at));
    const size_t begin = out.size();
    out += RepairUtf8(text.substr(range.begin, range.end - range.begin));
    at = range.end;
    range = {begin, out.size()};
  }
  return out += RepairUtf8(text.substr(at));
}

// The finder's tokens in text[begin, end), in order, except tokens that touch a literal range.
void FindIn(const TokenFinder& finder, std::string_view text, TextRange part, std::span<const TextRange> literal,
            std::vector<AddedTokenMatch>* places) {
  auto next = std::partition_point(literal.begin(), literal.end(),
                                   [&](const TextRange& range) { return range.end <= part.begin; });
  for (size_t at = part.begin; at < part.end;) {
    const TokenFinder::Match match = finder.Find(text.substr(0, part.end), at);
    if (match.id < 0) return;
    while (next != literal.end() && next->end <= match.begin) ++next;
    const bool touches = next != literal.end() && next->begin < match.end;
    if (!touches) places->push_back({{match.begin, match.end}, match.id});
    at = touches ? match.begin + 1 : match.end;
  }
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(size_t num_merges) : merges(num_merges) {}

  Status AddTokens(const TokenizerFile& file);
  Status PlaceTokens(const TokenizerFile& file, std::vector<std::string>* texts);  // texts of ids, and `kinds`
  Status IndexTokens(const TokenizerFile& file);                                   // ids of texts
  Status AddMerges(const TokenizerFile& file);
  Status AddConfig(const TokenizerConfig& config);
  std::string_view Bytes(TokenId id) const {
    const auto i = static_cast<size_t>(id);
    return std::string_view(bytes).substr(offsets[i], offsets[i + 1] - offsets[i]);
  }

  void Find(std::string_view text, std::span<const TextRange> literal, std::vector<AddedTokenMatch>* places) const;
  void EncodeText(std::string_view text, BpeEncoder* bpe, std::vector<size_t>* ends, std::vector<TokenId>* ids) const;

  std::string bytes;            // of all tokens, in the order of their ids
  std::vector<size_t> offsets;  // [vocab_size + 1]
  std::vector<TokenKind> kinds;
  std::unordered_map<std::string_view, TokenId> ordinary;  // views into `bytes`
  std::unordered_map<std::string_view, TokenId> added;
  std::array<TokenId, 256> byte_ids{};
  MergeTable merges;
  TokenFinder first_pass;   // added tokens with normalized: false
  TokenFinder second_pass;  // the others
  TokenId bos_token_id = -1;
  TokenId eos_token_id = -1;
};

Status Tokenizer::Impl::PlaceTokens(const TokenizerFile& file, std::vector<std::string>* texts_of) {
  // A token may be in the vocabulary and among the added ones, with the same id. So there are at least half as many ids
  // as entries. If there are no gaps, every id is below the number of entries.
  const size_t limit = file.vocab.size() + file.added_tokens.size();
  std::vector<std::string>& texts = *texts_of;
  texts.resize(limit);
  kinds.assign(limit, TokenKind::kNone);
  std::unordered_map<std::string_view, TokenId> contents;
  for (const AddedToken& token : file.added_tokens) {
    const auto i = static_cast<size_t>(token.id);
    if (i >= limit) return DataLoss(StrCat("added_tokens: id ", token.id, " leaves a gap below it"));
    if (kinds[i] != TokenKind::kNone) return DataLoss(StrCat("added_tokens: two tokens have the id ", token.id));
    if (!contents.try_emplace(token.content, token.id).second) {
      return DataLoss(StrCat("added_tokens: ", Quoted(token.content), " occurs twice"));
    }
    texts[i] = token.content;
    kinds[i] = token.special ? TokenKind::kSpecial : TokenKind::kAdded;
    (token.normalized ? second_pass : first_pass).Add(token.content, token.id);
  }
  for (const auto& [symbols, id] : file.vocab) {
    const auto i = static_cast<size_t>(id);
    const auto added_token = contents.find(symbols);
    if (added_token != contents.end()) {
      if (added_token->second == id) continue;
      return DataLoss(
          StrCat("model.vocab gives ", Quoted(symbols), " the id ", id, ", added_tokens ", added_token->second));
    }
    if (i >= limit) return DataLoss(StrCat("model.vocab: id ", id, " leaves a gap below it"));
    if (kinds[i] != TokenKind::kNone) return DataLoss(StrCat("model.vocab: two tokens have the id ", id));
    std::optional<std::string> token_bytes = BytesOfSymbols(symbols);
    if (!token_bytes) return DataLoss(StrCat("model.vocab: ", Quoted(symbols), " is not in the byte-level alphabet"));
    texts[i] = *std::move(token_bytes);
    kinds[i] = TokenKind::kOrdinary;
  }
  while (!kinds.empty() && kinds.back() == TokenKind::kNone) kinds.pop_back();
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] == TokenKind::kNone) return DataLoss(StrCat("no token has the id ", i, ", but there are higher ones"));
  }
  texts.resize(kinds.size());
  return {};
}

Status Tokenizer::Impl::AddTokens(const TokenizerFile& file) {
  std::vector<std::string> texts;
  DSV4_RETURN_IF_ERROR(PlaceTokens(file, &texts));
  size_t total = 0;
  for (const std::string& text : texts) total += text.size();
  bytes.reserve(total);
  offsets.push_back(0);
  for (const std::string& text : texts) {
    bytes += text;
    offsets.push_back(bytes.size());
  }
  return IndexTokens(file);
}

Status Tokenizer::Impl::IndexTokens(const TokenizerFile& file) {
  for (size_t i = 0; i < kinds.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    (kinds[i] == TokenKind::kOrdinary ? ordinary : added).emplace(Bytes(id), id);
  }
  // Added tokens that the vocabulary also lists may be parts of merges.
  for (const auto& [symbols, id] : file.vocab) {
    if (kinds[static_cast<size_t>(id)] == TokenKind::kOrdinary) continue;
    if (BytesOfSymbols(symbols) == Bytes(id)) ordinary.emplace(Bytes(id), id);
  }
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    const auto it = ordinary.find(std::string_view(&byte, 1));
    if (it == ordinary.end()) return DataLoss(StrCat("model.vocab lacks the token of the single byte ", b));
    byte_ids[static_cast<size_t>(b)] = it->second;
  }
  return {};
}

Status Tokenizer::Impl::AddMerges(const TokenizerFile& file) {
  for (size_t i = 0; i < file.merges.size(); ++i) {
    const auto& [left, right] = file.merges[i];
    const auto find = [&](const std::string& symbols) -> TokenId {
      const std::optional<std::string> token = BytesOfSymbols(symbols);
      if (!token) return -1;
      const auto it = ordinary.find(*token);
      return it == ordinary.end() ? -1 : it->second;
    };
    for (const std::string& symbols : {left, right, left + right}) {
      if (find(symbols) < 0)
        return DataLoss(StrCat("model.merges[", i, "]: no token ", Quoted(symbols), " in model.vocab"));
    }
    if (!merges.Add(find(left), find(right), find(left + right))) {
      return DataLoss(StrCat("model.merges[", i, "] repeats an earlier merge"));
    }
  }
  return {};
}

Status Tokenizer::Impl::AddConfig(const TokenizerConfig& config) {
  const auto find = [&](std::string_view field, const std::string& token, TokenId* id) -> Status {
    if (token.empty()) return {};
    const auto it = added.find(token);
    if (it == added.end()) return DataLoss(StrCat(field, " ", Quoted(token), " is not among the added tokens"));
    *id = it->second;
    return {};
  };
  DSV4_RETURN_IF_ERROR(find("bos_token", config.bos_token, &bos_token_id));
  return find("eos_token", config.eos_token, &eos_token_id);
}

// Matches of the second pass are in the texts between the matches of the first.
void Tokenizer::Impl::Find(std::string_view text, std::span<const TextRange> literal,
                           std::vector<AddedTokenMatch>* places) const {
  std::vector<AddedTokenMatch> first;
  FindIn(first_pass, text, {0, text.size()}, literal, &first);
  size_t at = 0;
  for (const AddedTokenMatch& place : first) {
    FindIn(second_pass, text, {at, place.range.begin}, literal, places);
    places->push_back(place);
    at = place.range.end;
  }
  FindIn(second_pass, text, {at, text.size()}, literal, places);
}

void Tokenizer::Impl::EncodeText(std::string_view text, BpeEncoder* bpe, std::vector<size_t>* ends,
                                 std::vector<TokenId>* ids) const {
  ends->clear();
  PreTokenize(text, ends);
  size_t begin = 0;
  for (const size_t end : *ends) {
    bpe->Encode(text.substr(begin, end - begin), ids);
    begin = end;
  }
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& model_dir) {
  const std::string path = model_dir + "/tokenizer.json", config_path = model_dir + "/tokenizer_config.json";
  if (!FileExists(path)) return NotFound(StrCat(path, " does not exist; give -m a folder with the model's tokenizer"));
  DSV4_ASSIGN_OR_RETURN(const std::string json, ReadFile(path, kMaxFileBytes));
  if (IsLfsPointer(json)) return DataLoss(StrCat(path, " is ", kFetchFromLfs));
  std::string config_json;
  if (FileExists(config_path)) {
    DSV4_ASSIGN_OR_RETURN(config_json, ReadFile(config_path, kMaxFileBytes));
    if (config_json.empty()) return DataLoss(StrCat(config_path, ": the file is empty"));
  }
  Result<std::unique_ptr<Tokenizer>> tokenizer = FromJson(json, config_json);
  if (!tokenizer.ok()) return Status(tokenizer.status().code(), StrCat(model_dir, "/", tokenizer.status().message()));
  return tokenizer;
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(std::string_view tokenizer_json, std::string_view config_json) {
  const auto in_file = [](std::string_view file, const Status& status) {
    return Status(status.code(), StrCat(file, ": ", status.message()));
  };
  const Result<TokenizerFile> file = ReadTokenizerFile(tokenizer_json);
  if (!file.ok()) return in_file("tokenizer.json", file.status());
  auto impl = std::make_unique<Impl>(file->merges.size());
  Status status = impl->AddTokens(*file);
  if (status.ok()) status = impl->AddMerges(*file);
  if (!status.ok()) return in_file("tokenizer.json", status);
  if (!config_json.empty()) {
    const Result<TokenizerConfig> config = ReadTokenizerConfig(config_json);
    status = config.ok() ? impl->AddConfig(*config) : config.status();
    if (!status.ok()) return in_file("tokenizer_config.json", status);
  }
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(impl_->kinds.size()); }

std::vector<AddedTokenMatch> Tokenizer::FindAddedTokens(std::string_view text, const EncodeOptions& options) const {
  std::vector<AddedTokenMatch> places;
  if (options.recognize_added_tokens) impl_->Find(text, options.literal, &places);
  return places;
}

std::vector<TokenId> Tokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  if (ValidUtf8Prefix(text) != text.size()) {
    std::vector<TextRange> moved(options.literal.begin(), options.literal.end());
    const std::string repaired = RepairWithRanges(text, &moved);
    return Encode(repaired, {.recognize_added_tokens = options.recognize_added_tokens, .literal = moved});
  }
  std::vector<TokenId> ids;
  std::vector<size_t> ends;
  BpeEncoder bpe(impl_->merges, impl_->byte_ids);
  size_t at = 0;
  for (const AddedTokenMatch& place : FindAddedTokens(text, options)) {
    impl_->EncodeText(text.substr(at, place.range.begin - at), &bpe, &ends, &ids);
    ids.push_back(place.id);
    at = place.range.end;
  }
  impl_->EncodeText(text.substr(at), &bpe, &ends, &ids);
  return ids;
}

Result<std::string> Tokenizer::Decode(std::span<const TokenId> ids, const DecodeOptions& options) const {
  std::string joined;
  for (const TokenId id : ids) {
    if (!IsValid(id)) return InvalidArgument(StrCat("token id ", id, " is not in 0 .. ", vocab_size() - 1));
    if (!options.skip_special || !IsSpecial(id)) joined += TokenBytes(id);
  }
  return RepairUtf8(joined);
}

std::string_view Tokenizer::TokenBytes(TokenId id) const { return IsValid(id) ? impl_->Bytes(id) : std::string_view(); }

std::optional<TokenId> Tokenizer::FindToken(std::string_view bytes) const {
  for (const auto* table : {&impl_->added, &impl_->ordinary}) {
    if (const auto it = table->find(bytes); it != table->end()) return it->second;
  }
  return std::nullopt;
}

bool Tokenizer::IsAdded(TokenId id) const {
  return IsValid(id) && impl_->kinds[static_cast<size_t>(id)] != TokenKind::kOrdinary;
}

bool Tokenizer::IsSpecial(TokenId id) const {
  return IsValid(id) && impl_->kinds[static_cast<size_t>(id)] == TokenKind::kSpecial;
}

TokenId Tokenizer::bos_token_id() const { return impl_->bos_token_id; }
TokenId Tokenizer::eos_token_id() const { return impl_->eos_token_id; }

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, const DecodeOptions& options)
    : tokenizer_(&tokenizer), options_(options) {}

Result<std::string> StreamDecoder::Push(TokenId id) {
  if (!tokenizer_->IsValid(id)) {
    return InvalidArgument(StrCat("token id ", id, " is not in 0 .. ", tokenizer_->vocab_size() - 1));
  }
  std::string text;
  if (options_.skip_special && tokenizer_->IsSpecial(id)) return text;
  held_ += tokenizer_->TokenBytes(id);
  DrainUtf8(&held_, &text);
  return text;
}

std::string StreamDecoder::Finish() {
  const std::string text(held_.empty() ? "" : kReplacementCharacter);
  held_.clear();
  return text;
}

}  // namespace dsv4
