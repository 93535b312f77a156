// Text for a terminal: nothing in it is obeyed as a command, and lines break between words.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dsv4::cli {

// The offset of the first byte that is not valid UTF-8, or npos.
size_t FindInvalidUtf8(std::string_view text);

// Spells out control characters (\x1b), marks that change the direction of text (\u202e), and bytes that are not
// valid UTF-8. Keeps line feeds, tabs, and a carriage return before a line feed.
std::string ForTerminal(std::string_view text);

// The same on one line: line feeds and carriage returns become spaces, tabs are spelled out.
std::string Printable(std::string_view text);

// Columns of a terminal that the character takes: 0, 1 or 2.
int ColumnsOfCharacter(char32_t character);

// Breaks lines between words, for text that comes in pieces. A word is held back until it ends. A line may end after
// any wide character (Chinese, Japanese, Korean). A word that is longer than a line stays whole. Lines between ```
// marks also stay whole.
class WordWrap {
 public:
  // `text` is valid UTF-8 without control characters except line feeds and tabs (ForTerminal). `columns`: of a line.
  std::string Push(std::string_view text, size_t columns);
  std::string Finish(size_t columns);  // what is held back

 private:
  void PutWord(size_t columns, std::string* out);
  void PutCharacter(std::string_view bytes, char32_t character, size_t columns, std::string* out);
  void EndLine(std::string* out);

  std::string word_, spaces_;  // held back; the spaces come before the word
  std::string line_begin_;     // the first characters of the line, to find ``` marks
  size_t column_ = 0, word_columns_ = 0;
  bool in_code_ = false;
  bool within_word_ = false;  // the line ends with a part of the word that is held back
};

// Returns `text` in lines of at most `columns` columns. All lines except the first are indented by `indent` spaces; the
// caller prints the indent of the first line.
std::string Wrapped(std::string_view text, size_t columns, size_t indent);

}  // namespace dsv4::cli
