#include "server/base/text_key.h"

namespace dsv4::server {

namespace {

void AddSymbol(TokenId id, size_t text_at, TextKey* key) {
  key->seams.push_back({key->key.size(), text_at});
  key->added.push_back(id);
  key->key += kSymbol;
  for (const int shift : {0, 8, 16}) key->key += static_cast<char>(static_cast<uint32_t>(id) >> shift & 0xFF);
}

}  // namespace

TextKey KeyOfText(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options) {
  TextKey key;
  size_t at = 0;
  for (const AddedTokenMatch& place : tokenizer.FindAddedTokens(text, options)) {
    key.key += text.substr(at, place.range.begin - at);
    AddSymbol(place.id, place.range.begin, &key);
    at = place.range.end;
  }
  key.key += text.substr(at);
  return key;
}

std::optional<TextKey> KeyOfIds(const Tokenizer& tokenizer, std::span<const TokenId> ids) {
  TextKey key;
  size_t at = 0;
  for (const TokenId id : ids) {
    const std::string_view bytes = tokenizer.TokenBytes(id);
    if (bytes.empty()) return std::nullopt;
    if (tokenizer.IsAdded(id)) {
      AddSymbol(id, at, &key);
    } else {
      if (bytes.find(kSymbol) != std::string_view::npos) return std::nullopt;
      key.key += bytes;
    }
    at += bytes.size();
  }
  return key;
}

}  // namespace dsv4::server
