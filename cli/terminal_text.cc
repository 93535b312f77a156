#include "terminal_text.h"

#include <algorithm>
#include <iterator>

namespace dsv4::cli {

namespace {

struct Range {
  char32_t first, last;
};

template <size_t N>
bool IsIn(const Range (&ranges)[N], char32_t c) {
  return std::any_of(std::begin(ranges), std::end(ranges), [c](Range r) { return c >= r.first && c <= r.last; });
}

// Characters that change the direction of the text after them.
constexpr Range kDirectionMarks[] = {{0x061c, 0x061c}, {0x200e, 0x200f}, {0x202a, 0x202e}, {0x2066, 0x2069}};
constexpr Range kNoColumn[] = {{0x0300, 0x036f}, {0x0483, 0x0489}, {0x0591, 0x05bd}, {0x064b, 0x065f},
                               {0x1ab0, 0x1aff}, {0x1dc0, 0x1dff}, {0x200b, 0x200d}, {0x20d0, 0x20ff},
                               {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f}, {0xfeff, 0xfeff}, {0xe0100, 0xe01ef}};
constexpr Range kTwoColumns[] = {{0x1100, 0x115f},   {0x2e80, 0x303e},  {0x3041, 0x33ff},   {0x3400, 0x4dbf},
                                 {0x4e00, 0xa4cf},   {0xac00, 0xd7a3},  {0xf900, 0xfaff},   {0xfe30, 0xfe6f},
                                 {0xff00, 0xff60},   {0xffe0, 0xffe6},  {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff},
                                 {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};

// The bytes of the valid UTF-8 character that begins with `first`.
size_t LengthOf(char first) {
  const auto c = static_cast<unsigned char>(first);
  return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

char32_t CharacterOf(std::string_view bytes) {
  const auto first = static_cast<unsigned char>(bytes[0]);
  if (bytes.size() == 1) return first;
  char32_t c = first & (0xffu >> (bytes.size() + 1));
  for (const char byte : bytes.substr(1)) c = c << 6 | (static_cast<unsigned char>(byte) & 0x3fu);
  return c;
}

void AppendHex(char32_t value, int digits, std::string* out) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) *out += kDigits[value >> shift & 15];
}

// `text` with what a terminal would obey spelled out, except where keep(rest of the text) returns a replacement.
template <typename Keep>
std::string Spelled(std::string_view text, const Keep& keep) {
  std::string out;
  size_t invalid = FindInvalidUtf8(text);
  for (size_t i = 0; i < text.size();) {
    if (i == invalid) {
      AppendHex(static_cast<unsigned char>(text[i]), 2, &(out += "\\x"));
      const size_t next = FindInvalidUtf8(text.substr(++i));
      invalid = next == std::string_view::npos ? next : i + next;
      continue;
    }
    const std::string_view bytes = text.substr(i, LengthOf(text[i]));
    const char32_t c = CharacterOf(bytes);
    const bool c0 = c < 0x20 || c == 0x7f, c1 = c >= 0x80 && c < 0xa0;  // both begin control sequences
    if (!c0 && !c1 && !IsIn(kDirectionMarks, c)) {
      out += bytes;
    } else if (const std::string_view kept = keep(text.substr(i)); !kept.empty()) {
      out += kept;
    } else if (c0) {
      AppendHex(c, 2, &(out += "\\x"));
    } else {
      AppendHex(c, 4, &(out += "\\u"));
    }
    i += bytes.size();
  }
  return out;
}

}  // namespace

size_t FindInvalidUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u; };
    const unsigned first = byte(i);
    size_t length = 1;
    unsigned low = 0x80;  // what the second byte may be
    unsigned high = 0xbf;
    if (first >= 0xc2 && first <= 0xdf) {
      length = 2;
    } else if (first >= 0xe0 && first <= 0xef) {
      length = 3;
      if (first == 0xe0) low = 0xa0;   // no overlong forms
      if (first == 0xed) high = 0x9f;  // no surrogates
    } else if (first >= 0xf0 && first <= 0xf4) {
      length = 4;
      if (first == 0xf0) low = 0x90;
      if (first == 0xf4) high = 0x8f;  // up to U+10FFFF
    } else if (first >= 0x80) {
      return i;
    }
    for (size_t k = 1; k < length; ++k) {
      const unsigned next = byte(i + k);
      if (k == 1 ? (next < low || next > high) : (next < 0x80 || next > 0xbf)) return i;
    }
    i += length;
  }
  return std::string_view::npos;
}

std::string ForTerminal(std::string_view text) {
  return Spelled(text, [](std::string_view rest) -> std::string_view {
    const bool kept = rest[0] == '\n' || rest[0] == '\t' || rest.starts_with("\r\n");
    return kept ? rest.substr(0, 1) : "";
  });
}

std::string Printable(std::string_view text) {
  return Spelled(
      text, [](std::string_view rest) -> std::string_view { return rest[0] == '\n' || rest[0] == '\r' ? " " : ""; });
}

int ColumnsOfCharacter(char32_t character) {
  if (character < 0x300) return 1;
  return IsIn(kNoColumn, character) ? 0 : IsIn(kTwoColumns, character) ? 2 : 1;
}

void WordWrap::EndLine(std::string* out) {
  if (line_begin_ == "```") in_code_ = !in_code_;
  line_begin_.clear();
  *out += '\n';
  column_ = 0;
  within_word_ = false;
}

void WordWrap::PutWord(size_t columns, std::string* out) {
  if (word_.empty()) return;
  if (column_ > 0 && column_ + spaces_.size() + word_columns_ > columns && !in_code_ && !within_word_) {
    *out += '\n';
    column_ = 0;
  } else {
    *out += spaces_;
    column_ += spaces_.size();
  }
  *out += word_;
  column_ += word_columns_;
  spaces_.clear();
  word_.clear();
  word_columns_ = 0;
}

void WordWrap::PutCharacter(std::string_view bytes, char32_t character, size_t columns, std::string* out) {
  const bool indents = line_begin_.empty() && (character == ' ' || character == '\t');
  if (line_begin_.size() < 3 && character != '\n' && !indents) line_begin_ += character == '`' ? '`' : '.';
  if (character == '\n') {
    PutWord(columns, out);
    spaces_.clear();
    return EndLine(out);
  }
  if (character == ' ' || character == '\t') {
    PutWord(columns, out);
    within_word_ = false;
    spaces_ += character == '\t' ? "    " : " ";
    return;
  }
  const int width = ColumnsOfCharacter(character);
  if (width == 2) PutWord(columns, out), within_word_ = false;
  word_ += bytes;
  word_columns_ += static_cast<size_t>(width);
  const bool is_long = word_columns_ >= columns;
  if (width == 2 || in_code_ || is_long) PutWord(columns, out);
  if (is_long) within_word_ = true;
}

std::string WordWrap::Push(std::string_view text, size_t columns) {
  std::string out;
  while (!text.empty()) {
    const std::string_view bytes = text.substr(0, LengthOf(text[0]));
    PutCharacter(bytes, CharacterOf(bytes), columns, &out);
    text.remove_prefix(bytes.size());
  }
  return out;
}

std::string WordWrap::Finish(size_t columns) {
  std::string out;
  PutWord(columns, &out);
  spaces_.clear();
  return out;
}

std::string Wrapped(std::string_view text, size_t columns, size_t indent) {
  WordWrap wrap;
  const size_t width = columns > indent + 20 ? columns - indent : columns;
  std::string lines = wrap.Push(text, width), out;
  lines += wrap.Finish(width);
  for (const char c : lines) {
    out += c;
    if (c == '\n' && width < columns) out.append(indent, ' ');
  }
  return out;
}

}  // namespace dsv4::cli
