// Character classes of the pre-tokenizer's patterns. The table comes from the reference tokenizer
// (tools/text/make_unicode_tables.py), so that newly assigned characters are split as there.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace dsv4 {

enum class CharClass : uint8_t {
  kOther,        // controls, format characters, unassigned, private use
  kLetter,       // \p{L}
  kMark,         // \p{M}
  kNumber,       // \p{N}
  kPunctuation,  // \p{P}
  kSymbol,       // \p{S}
  kSpace,        // \s: White_Space
};

struct CharRange {
  uint32_t first;
  uint32_t last;
  CharClass char_class;
};

// Sorted, without overlaps. Every other code point is kOther.
std::span<const CharRange> CharRanges();

// One byte per code point, so that a lookup is one load.
class CharClassTable {
 public:
  static const CharClassTable& Get();
  CharClass operator[](uint32_t code) const { return classes_[code]; }  // code <= 0x10FFFF

 private:
  CharClassTable();
  std::array<CharClass, 0x110000> classes_;
};

}  // namespace dsv4
