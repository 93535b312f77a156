#include "text/pre_tokenizer.h"

#include <cstdint>

#include "text/unicode.h"
#include "text/utf8.h"

namespace dsv4 {

namespace {

bool IsLineEnd(uint32_t code) { return code == '\r' || code == '\n'; }
bool IsAsciiLetter(uint32_t code) { return (code | 0x20) >= 'a' && (code | 0x20) <= 'z'; }
bool IsAsciiPunctuation(uint32_t code) {
  return code > 0x20 && code < 0x7F && !IsAsciiLetter(code) && (code < '0' || code > '9');
}
bool IsWordClass(CharClass c) { return c == CharClass::kLetter || c == CharClass::kMark; }
bool IsSignClass(CharClass c) { return c == CharClass::kPunctuation || c == CharClass::kSymbol; }
bool IsCjk(uint32_t code) { return (code >= 0x4E00 && code <= 0x9FA5) || (code >= 0x3040 && code <= 0x30FF); }

struct Char {
  uint32_t code;
  CharClass char_class;
  size_t end;  // offset after it
};

class Scanner {
 public:
  Scanner(std::string_view text, std::vector<size_t>* ends) : text_(text), ends_(ends) {}

  void Run() {
    size_t at = 0;
    while (at < text_.size()) {
      const bool number = CharAt(at).char_class == CharClass::kNumber;
      size_t end = at;
      int count = 0;
      while (end < text_.size() && (!number || count < 3)) {
        const Char c = CharAt(end);
        if ((c.char_class == CharClass::kNumber) != number) break;
        end = c.end;
        ++count;
      }
      if (number) {
        ends_->push_back(end);  // kWordPattern matches nothing in numbers alone, so they stay whole
      } else {
        SplitCjk(at, end);
      }
      at = end;
    }
  }

 private:
  Char CharAt(size_t at) const {
    size_t length;
    const uint32_t code = DecodeValidUtf8(text_.substr(at), &length);
    return {code, classes_[code], at + length};
  }

  void SplitCjk(size_t begin, size_t end) {
    while (begin < end) {
      const bool cjk = IsCjk(CharAt(begin).code);
      size_t at = begin;
      while (at < end) {
        const Char c = CharAt(at);
        if (IsCjk(c.code) != cjk) break;
        at = c.end;
      }
      SplitWords(begin, at);
      begin = at;
    }
  }

  void SplitWords(size_t begin, size_t end) {
    bool in_gap = false;  // unmatched characters are joined into one piece
    while (begin < end) {
      const size_t match = MatchWord(begin, end);
      if (match == begin) {
        in_gap = true;
        begin = CharAt(begin).end;
        continue;
      }
      if (in_gap) ends_->push_back(begin);
      in_gap = false;
      ends_->push_back(match);
      begin = match;
    }
    if (in_gap) ends_->push_back(end);
  }

  // The end of kWordPattern's match at `at` in the piece that ends at `end`; `at` if there is no match.
  size_t MatchWord(size_t at, size_t end) const {
    const Char c = CharAt(at);
    const Char next = c.end < end ? CharAt(c.end) : Char{0, CharClass::kOther, c.end};
    if (IsAsciiPunctuation(c.code) && IsAsciiLetter(next.code)) {
      return Skip(c.end, end, [](const Char& x) { return IsAsciiLetter(x.code); });
    }
    const bool may_lead = !IsLineEnd(c.code) && !IsSignClass(c.char_class);
    if (IsWordClass(c.char_class) || (may_lead && IsWordClass(next.char_class))) {
      return Skip(c.end, end, [](const Char& x) { return IsWordClass(x.char_class); });
    }
    if (IsSignClass(c.char_class) || (c.code == ' ' && IsSignClass(next.char_class))) {
      const size_t signs = Skip(c.end, end, [](const Char& x) { return IsSignClass(x.char_class); });
      return Skip(signs, end, [](const Char& x) { return IsLineEnd(x.code); });
    }
    if (c.char_class == CharClass::kSpace) return MatchSpace(at, end);
    return at;
  }

  size_t MatchSpace(size_t at, size_t end) const {
    size_t stop = at, last = at, after_line_end = at;  // last: where the last character of the run begins
    int count = 0;
    while (stop < end) {
      const Char c = CharAt(stop);
      if (c.char_class != CharClass::kSpace) break;
      last = stop;
      stop = c.end;
      if (IsLineEnd(c.code)) after_line_end = stop;
      if (count < 2) ++count;
    }
    if (after_line_end != at) return after_line_end;
    return stop == end || count == 1 ? stop : last;  // the last one leads the next word
  }

  template <typename Pred>
  size_t Skip(size_t at, size_t end, Pred pred) const {
    while (at < end) {
      const Char c = CharAt(at);
      if (!pred(c)) break;
      at = c.end;
    }
    return at;
  }

  const CharClassTable& classes_ = CharClassTable::Get();
  std::string_view text_;
  std::vector<size_t>* ends_;
};

}  // namespace

void PreTokenize(std::string_view text, std::vector<size_t>* ends) { Scanner(text, ends).Run(); }

}  // namespace dsv4
