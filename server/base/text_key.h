// A key of a text that identifies the tokens it was made of. It holds the bytes of the text, but each added token is
// one symbol that no spelling of the token equals. Two texts with the same key have the same added tokens in the same
// positions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/tokenizer.h"
#include "dsv4/types.h"

namespace dsv4::server {

// The first byte of a symbol; UTF-8 never contains it. Three bytes of the token id follow.
inline constexpr char kSymbol = static_cast<char>(0xFF);

struct TextKey {
  struct Seam {
    size_t key = 0, text = 0;  // where an added token begins in the key and in the text
  };
  std::string key;
  std::vector<Seam> seams;
  std::vector<TokenId> added;  // ids of the added tokens
};

// Requires valid UTF-8.
TextKey KeyOfText(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options);

// Returns nullopt if an id has no text or if the bytes of the ids are not valid UTF-8.
std::optional<TextKey> KeyOfIds(const Tokenizer& tokenizer, std::span<const TokenId> ids);

}  // namespace dsv4::server
