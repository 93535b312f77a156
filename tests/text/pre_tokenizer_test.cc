#include "text/pre_tokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/unicode.h"

namespace dsv4 {
namespace {

std::vector<std::string> Pieces(std::string_view text) {
  std::vector<size_t> ends;
  PreTokenize(text, &ends);
  std::vector<std::string> pieces;
  size_t begin = 0;
  for (const size_t end : ends) {
    pieces.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  EXPECT_EQ(begin, text.size());
  return pieces;
}

using P = std::vector<std::string>;

TEST(PreTokenizer, PassesSeeOnlyTheirPiece) {
  EXPECT_EQ(Pieces("  7"), (P{"  ", "7"}));  // both spaces end their piece
  EXPECT_EQ(Pieces("  x"), (P{" ", " x"}));
  EXPECT_EQ(Pieces("  中"), (P{"  ", "中"}));
  EXPECT_EQ(Pieces("中  x"), (P{"中", " ", " x"}));
  EXPECT_EQ(Pieces("ab中cd"), (P{"ab", "中", "cd"}));
  EXPECT_EQ(Pieces("1234567"), (P{"123", "456", "7"}));
}

TEST(PreTokenizer, CjkRunsAreCutAtSigns) {
  EXPECT_EQ(Pieces("ア・イ"), (P{"ア", "・", "イ"}));
  EXPECT_EQ(Pieces("カー"), (P{"カー"}));
  EXPECT_EQ(Pieces("龥龦"), (P{"龥", "龦"}));
  EXPECT_EQ(Pieces("㐀一"), (P{"㐀", "一"}));
}

TEST(PreTokenizer, Words) {
  EXPECT_EQ(Pieces("don't stop"), (P{"don", "'t", " stop"}));
  EXPECT_EQ(Pieces("a_b ~x"), (P{"a", "_b", " ~", "x"}));
  EXPECT_EQ(Pieces("«x» !?\r\n\nz"), (P{"«", "x", "»", " !?\r\n\n", "z"}));
  EXPECT_EQ(Pieces("\tx\u00a0y"), (P{"\tx", "\u00a0y"}));
  EXPECT_EQ(Pieces("e\u0301x \u0301"), (P{"e\u0301x", " \u0301"}));
}

TEST(PreTokenizer, WhiteSpace) {
  EXPECT_EQ(Pieces("a \n \r  b"), (P{"a", " \n \r", " ", " b"}));
  EXPECT_EQ(Pieces("a   "), (P{"a", "   "}));
  EXPECT_EQ(Pieces("a  ."), (P{"a", " ", " ."}));
  EXPECT_EQ(Pieces("\n\nx"), (P{"\n\n", "x"}));
  EXPECT_EQ(Pieces("\u2028\u0085x"), (P{"\u2028", "\u0085x"}));
}

TEST(PreTokenizer, GapsJoinUntilSomethingMatches) {
  EXPECT_EQ(Pieces(std::string("\0\0\x1f", 3)), (P{std::string("\0\0\x1f", 3)}));
  EXPECT_EQ(Pieces("\u200b\u200d x"), (P{"\u200b\u200d", " x"}));
  EXPECT_EQ(Pieces("\u200b\u200dx"), (P{"\u200b", "\u200dx"}));  // the last one is the word's leading character
  EXPECT_EQ(Pieces("\u200b!"), (P{"\u200b", "!"}));
}

TEST(CharClassTable, WhiteSpaceIsUnicodes) {
  const CharClassTable& classes = CharClassTable::Get();
  for (const uint32_t c :
       {0x09u, 0x0Du, 0x20u, 0x85u, 0xA0u, 0x1680u, 0x2000u, 0x200Au, 0x2028u, 0x202Fu, 0x205Fu, 0x3000u}) {
    EXPECT_EQ(classes[c], CharClass::kSpace) << c;
  }
  for (const uint32_t c : {0x1Cu, 0x1Fu, 0x180Eu, 0x200Bu, 0xFEFFu}) EXPECT_EQ(classes[c], CharClass::kOther) << c;
  EXPECT_EQ(classes[0x10FFFF], CharClass::kOther);
  EXPECT_EQ(classes['~'], CharClass::kSymbol);
  EXPECT_EQ(classes[0xBD], CharClass::kNumber);
  EXPECT_EQ(classes[0x301], CharClass::kMark);
}

TEST(CharClassTable, RangesAreInOrder) {
  uint32_t next = 0;
  for (const CharRange& range : CharRanges()) {
    EXPECT_LE(next, range.first);
    EXPECT_LE(range.first, range.last);
    next = range.last + 1;
  }
  EXPECT_LE(next, 0x110000u);
}

}  // namespace
}  // namespace dsv4
