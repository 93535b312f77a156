// Pre-tokenization: splits text into the pieces that BPE may not merge across.
//
// Three Splits in sequence. Each treats every piece of the previous one as a separate text, so "end of text" in a
// pattern means the end of the piece:
//   kNumberPattern   runs of numbers, at most three at a time
//   kCjkPattern      runs of Han and kana
//   kWordPattern     words with one leading character, punctuation with following line ends, white space
// This code is written by hand; tests compare it with the patterns' reference (tools/text/compare_tokenizers.py).
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace dsv4 {

inline constexpr std::string_view kNumberPattern = "\\p{N}{1,3}";
inline constexpr std::string_view kCjkPattern = "[一-龥\u3040-ゟ゠-ヿ]+";
inline constexpr std::string_view kWordPattern =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

// Appends the ends of the pieces of `text` (valid UTF-8), in order. The last one is text.size().
void PreTokenize(std::string_view text, std::vector<size_t>* ends);

}  // namespace dsv4
