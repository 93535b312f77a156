#include "server/structured/pattern.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>

namespace dsv4::server {

namespace {

constexpr int kMaxGroups = 200;  // nested; a deeper pattern counts as one that JSON strings can follow

bool IsEscapedInJson(uint32_t c) { return c < 0x20 || c == '"' || c == '\\'; }

// Reads a pattern once. Each method returns true if some text of the part that it read has no escaped characters.
class PatternReader {
 public:
  explicit PatternReader(std::string_view pattern) : pattern_(pattern) {}

  bool Holds() {
    const bool plain = Alternatives(0);
    return (plain || too_deep_) && !looks_around_;
  }

 private:
  bool AtEnd() const { return at_ >= pattern_.size(); }
  bool Eat(std::string_view text) {
    if (!pattern_.substr(std::min(at_, pattern_.size())).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  uint32_t Next() { return AtEnd() ? 0 : static_cast<unsigned char>(pattern_[at_++]); }

  bool Alternatives(int depth) {
    if (depth > kMaxGroups) {
      too_deep_ = true;
      at_ = pattern_.size();
    }
    bool plain = Sequence(depth);
    while (Eat("|")) plain = Sequence(depth) || plain;
    return plain;
  }

  bool Sequence(int depth) {
    bool plain = true;
    while (!AtEnd() && pattern_[at_] != '|' && (pattern_[at_] != ')' || depth == 0)) {
      const bool atom = Atom(depth);
      const bool may_be_absent = Quantifier();
      plain = plain && (atom || may_be_absent);
    }
    return plain;
  }

  bool Quantifier() {
    bool absent = false;
    if (Eat("*") || Eat("?")) {
      absent = true;
    } else if (Eat("{")) {
      absent = Eat("0") && !AtEnd() && (pattern_[at_] == ',' || pattern_[at_] == '}');
      at_ = std::min(pattern_.find('}', at_), pattern_.size());
      Eat("}");
    } else if (!Eat("+")) {
      return false;
    }
    Eat("?");
    return absent;
  }

  bool Atom(int depth) {
    if (Eat("(")) return Group(depth);
    if (Eat("[")) return Class();
    if (Eat("\\")) return !Escape();
    return !IsEscapedInJson(Next());
  }

  bool Group(int depth) {
    bool counts = true;
    if (Eat("?=") || Eat("?!") || Eat("?<=") || Eat("?<!")) {
      looks_around_ = true;
      counts = false;
    } else if (Eat("?<") || Eat("?P<")) {
      at_ = std::min(pattern_.find('>', at_), pattern_.size());
      Eat(">");
    } else {
      Eat("?:");
    }
    const bool plain = Alternatives(depth + 1);
    Eat(")");
    return plain || !counts;
  }

  // Reads what follows a backslash. Returns true if JSON escapes that character. `c`: the character, if there is one.
  bool Escape(uint32_t* c = nullptr) {
    const uint32_t name = AtEnd() ? ' ' : Next();
    uint32_t code = name;
    if (name == 'n' || name == 'r' || name == 't' || name == 'v' || name == 'f' || name == 'e' || name == '0') {
      code = 1;
    } else if (name == 'c') {
      Next();
      code = 1;
    } else if (name == 'x') {
      code = Hex(2);
    } else if (name == 'u' && Eat("{")) {
      code = Hex(std::min(pattern_.find('}', at_), pattern_.size()) - at_);
      Eat("}");
    } else if (name == 'u') {
      code = Hex(4);
    }
    if (c != nullptr) *c = code;
    return IsEscapedInJson(code);
  }

  uint32_t Hex(size_t digits) {
    uint32_t code = 0;
    const std::string_view text = pattern_.substr(std::min(at_, pattern_.size()), digits);
    std::from_chars(text.data(), text.data() + text.size(), code, 16);
    at_ += text.size();
    return code;
  }

  // A negated class always leaves some characters.
  bool Class() {
    bool plain = Eat("^"), closed = false;
    while (!AtEnd() && !(closed = Eat("]"))) {
      const uint32_t low = Unit();
      uint32_t high = low;
      if (at_ + 1 < pattern_.size() && pattern_[at_] == '-' && pattern_[at_ + 1] != ']') {
        Eat("-");
        high = Unit();
      }
      plain = plain || !IsEscapedInJson(low) || !IsEscapedInJson(high) || (high >= 0x20 && high > low);
    }
    return plain || !closed;
  }

  uint32_t Unit() {
    uint32_t c = 0;
    if (!Eat("\\")) return Next();
    if (Eat("b")) return 0x08;
    Escape(&c);
    return c;
  }

  const std::string_view pattern_;
  size_t at_ = 0;
  bool looks_around_ = false, too_deep_ = false;
};

// Returns the character of several bytes at `at`, and its number of bytes.
uint32_t CodePoint(std::string_view text, size_t at, size_t* size) {
  const auto first = static_cast<unsigned char>(text[at]);
  *size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
  uint32_t code = *size == 1 ? first : first & (0x7Fu >> *size);
  for (size_t i = 1; i < *size && at + i < text.size(); ++i)
    code = code << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3Fu);
  return code;
}

}  // namespace

bool HoldsInJson(std::string_view pattern) { return PatternReader(pattern).Holds(); }

std::string AsciiPattern(std::string_view pattern) {
  std::string ascii;
  bool escaped = false;
  for (size_t i = 0; i < pattern.size();) {
    const char c = pattern[i];
    if (c >= 0x20 && c < 0x7F) {
      escaped = !escaped && c == '\\';
      ascii += c;
      ++i;
      continue;
    }
    if (escaped) ascii.pop_back();  // the escape of a character that needs none
    escaped = false;
    size_t size = 0;
    std::array<char, 8> digits;
    const char* end = std::to_chars(digits.data(), digits.data() + digits.size(), CodePoint(pattern, i, &size), 16).ptr;
    ascii.append("\\u{").append(digits.data(), static_cast<size_t>(end - digits.data())).append("}");
    i += size;
  }
  return ascii;
}

}  // namespace dsv4::server
