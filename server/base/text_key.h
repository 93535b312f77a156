// A text in the form in which it says which tokens it was made of: its bytes, but an added token is a symbol of its
// own, which no spelling of that token equals. Two texts with the same key have the same added tokens in the same
// places.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/tokenizer.h"
#include "dsv4/types.h"

namespace dsv4::server {

// The byte that a symbol begins with, which UTF-8 never holds; three bytes of the id follow.
inline constexpr char kSymbol = static_cast<char>(0xFF);

struct TextKey {
  struct Seam {
    size_t key = 0, text = 0;  // where an added token begins in the key, and in the text
  };
  std::string key;
  std::vector<Seam> seams;
  std::vector<TokenId> added;  // the ids of its added tokens
};

// Of valid UTF-8.
TextKey KeyOfText(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options);

// Nullopt where the ids are of no text: one of them has none, or they are no UTF-8.
std::optional<TextKey> KeyOfIds(const Tokenizer& tokenizer, std::span<const TokenId> ids);

}  // namespace dsv4::server
