#include "io/json_reader.h"

#include <limits>

namespace dsv4 {

namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The character that a backslash and `c` stand for; -1: JSON has no such escape. The caller handles \u.
int PlainEscape(char c) {
  switch (c) {
    case '"':
    case '\\':
    case '/':
      return c;
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    default:
      return -1;
  }
}

}  // namespace

void JsonReader::SkipSpace() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
    ++at_;
  }
}

bool JsonReader::Consume(char c) {
  SkipSpace();
  if (at_ >= text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

bool JsonReader::ReadString(std::string_view& out, std::deque<std::string>& unescaped) {
  if (!Consume('"')) return false;
  const size_t begin = at_;
  while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\') {
    if (static_cast<unsigned char>(text_[at_]) < 0x20) return false;
    ++at_;
  }
  if (at_ >= text_.size()) return false;
  if (text_[at_] == '"') {
    out = text_.substr(begin, at_ - begin);
    ++at_;
    return true;
  }
  std::string decoded(text_.substr(begin, at_ - begin));
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == '"') {
      ++at_;
      out = unescaped.emplace_back(std::move(decoded));
      return true;
    }
    if (static_cast<unsigned char>(c) < 0x20) return false;
    if (c != '\\') {
      decoded.push_back(c);
      ++at_;
      continue;
    }
    if (at_ + 1 >= text_.size()) return false;
    if (text_[at_ + 1] == 'u') {
      if (at_ + 6 > text_.size()) return false;
      int code = 0;
      for (size_t i = at_ + 2; i < at_ + 6; ++i) {
        const int digit = HexDigit(text_[i]);
        if (digit < 0) return false;
        code = code * 16 + digit;
      }
      if (code >= 0x80) return false;
      decoded.push_back(static_cast<char>(code));
      at_ += 6;
    } else {
      const int plain = PlainEscape(text_[at_ + 1]);
      if (plain < 0) return false;
      decoded.push_back(static_cast<char>(plain));
      at_ += 2;
    }
  }
  return false;
}

bool JsonReader::ReadCount(int64_t& out) {
  SkipSpace();
  const size_t begin = at_;
  int64_t value = 0;
  while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
    const int digit = text_[at_] - '0';
    if (value > (std::numeric_limits<int64_t>::max() - digit) / 10) return false;
    value = value * 10 + digit;
    ++at_;
  }
  if (at_ == begin || (at_ - begin > 1 && text_[begin] == '0')) return false;
  if (at_ < text_.size() && (text_[at_] == '.' || text_[at_] == 'e' || text_[at_] == 'E')) return false;
  out = value;
  return true;
}

bool JsonReader::SkipString() {
  if (!Consume('"')) return false;
  while (at_ < text_.size()) {
    const char c = text_[at_++];
    if (c == '"') return true;
    if (static_cast<unsigned char>(c) < 0x20) return false;
    if (c == '\\' && at_++ >= text_.size()) return false;
  }
  return false;
}

// A number, true, false or null. Accepts any run of their characters, because a skipped value has no effect.
bool JsonReader::SkipWord() {
  const size_t begin = at_;
  while (at_ < text_.size()) {
    const char c = text_[at_];
    const bool word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '+' || c == '-' || c == '.' || c == 'E';
    if (!word) break;
    ++at_;
  }
  return at_ > begin;
}

bool JsonReader::SkipValue(int max_depth) {
  SkipSpace();
  if (at_ >= text_.size() || max_depth < 1) return false;
  if (text_[at_] == '"') return SkipString();
  const bool object = text_[at_] == '{';
  if (!object && text_[at_] != '[') return SkipWord();
  ++at_;
  const char close = object ? '}' : ']';
  if (Consume(close)) return true;
  do {
    if (object && (!SkipString() || !Consume(':'))) return false;
    if (!SkipValue(max_depth - 1)) return false;
  } while (Consume(','));
  return Consume(close);
}

bool JsonReader::AtEnd() {
  SkipSpace();
  return at_ == text_.size();
}

}  // namespace dsv4
