// The byte-level alphabet of GPT-2: tokenizer files write each byte as one printable character. Printable
// bytes stand for themselves; the 68 others, in ascending order, are U+0100, U+0101, ... (space is 'Ġ', line
// feed 'Ċ').
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dsv4 {

// The bytes that `symbols` (valid UTF-8) stand for; nothing when a character is not in the alphabet.
std::optional<std::string> BytesOfSymbols(std::string_view symbols);

// The reverse.
std::string SymbolsOfBytes(std::string_view bytes);

}  // namespace dsv4
