// GPT-2's byte-level alphabet: tokenizer files write each byte as one printable character. A printable byte is its own
// character. The 68 others, in ascending order, are U+0100, U+0101, ... (space is 'Ġ', line feed 'Ċ').
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dsv4 {

// Returns the bytes that `symbols` (valid UTF-8) stand for; no value if a character is not in the alphabet.
std::optional<std::string> BytesOfSymbols(std::string_view symbols);

// The inverse.
std::string SymbolsOfBytes(std::string_view bytes);

}  // namespace dsv4
