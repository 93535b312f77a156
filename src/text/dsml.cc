#include "text/dsml.h"

#include <algorithm>
#include <array>

#include "text/format.h"

namespace dsv4 {

namespace {

using format::kDsml;

constexpr size_t kMaxAttribute = 1024;
constexpr size_t kMaxWrapper = 48, kMaxBlanks = 64;  // of the beginning of a block
constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::array<std::string_view, 4> kKnownWords = {"parameter", "invoke", "tool_calls", "calls"};

bool IsWordChar(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsBlank(char c) { return kBlanks.find(c) != kBlanks.npos; }

// Reads parts of a text one after the other; every function moves `at` if the part is there.
struct Cursor {
  std::string_view text;
  size_t at = 0;

  bool ended() const { return at == text.size(); }
  char next() const { return text[at]; }

  Match Literal(std::string_view literal) {
    const std::string_view rest = text.substr(at, literal.size());
    if (rest == literal) {
      at += literal.size();
      return Match::kYes;
    }
    return literal.starts_with(rest) ? Match::kMaybe : Match::kNo;
  }
  void Blanks() { at = SkipBlanks(text, at); }
  std::string_view Word() {
    const size_t begin = at;
    while (!ended() && IsWordChar(next())) ++at;
    return text.substr(begin, at - begin);
  }
};

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

// WORD = "VALUE", up to the quote that closes it.
Match ReadAttribute(Cursor* in, DsmlTag* tag) {
  const std::string word = LowerCase(in->Word());
  if (word.empty() || word.size() > kMaxAttribute) return Match::kNo;
  in->Blanks();
  if (in->ended()) return Match::kMaybe;
  if (in->next() != '=') return Match::kNo;
  ++in->at;
  in->Blanks();
  if (in->ended()) return Match::kMaybe;
  const char quote = in->next();
  if (quote != '"' && quote != '\'') return Match::kNo;
  const size_t begin = ++in->at;
  while (!in->ended() && in->next() != quote) {
    if (std::string_view("<>\n").find(in->next()) != std::string_view::npos) return Match::kNo;
    if (in->at - begin >= kMaxAttribute) return Match::kNo;
    ++in->at;
  }
  if (in->ended()) return Match::kMaybe;
  const std::string value(in->text.substr(begin, in->at - begin));
  ++in->at;
  if (word == "type") return Match::kYes;
  std::optional<std::string>* attribute = word == "name" ? &tag->name : word == "string" ? &tag->string : nullptr;
  if (attribute == nullptr || *attribute) return Match::kNo;
  *attribute = word == "string" ? LowerCase(value) : value;
  return Match::kYes;
}

// "<｜DSML｜WORD" or "</｜DSML｜WORD", without attributes.
Match ReadTagBegin(Cursor* in, DsmlTag* tag) {
  if (const Match m = in->Literal("<"); m != Match::kYes) return m;
  if (in->ended()) return Match::kMaybe;
  tag->closes = in->next() == '/';
  if (tag->closes) ++in->at;
  if (const Match m = in->Literal(kDsml); m != Match::kYes) return m;
  if (in->ended()) return Match::kMaybe;
  if (in->next() == ' ') ++in->at;
  tag->word = in->Word();
  if (in->ended()) return Match::kMaybe;
  return tag->word.empty() || tag->word.size() > kMaxWrapper ? Match::kNo : Match::kYes;
}

// "<｜DSML｜invoke" with a blank, ">" or "/" after it.
Match BeginsCall(std::string_view text) {
  Cursor in{text};
  DsmlTag tag;
  const Match m = ReadTagBegin(&in, &tag);
  if (m == Match::kMaybe && tag.closes) return Match::kNo;
  if (m == Match::kMaybe && !std::string_view("invoke").starts_with(tag.word)) return Match::kNo;
  if (m != Match::kYes) return m;
  return !tag.closes && tag.word == "invoke" && (IsBlank(in.next()) || in.next() == '>' || in.next() == '/')
             ? Match::kYes
             : Match::kNo;
}

bool InWrapper(char c) {
  return IsWordChar(c) || c == ' ' || c == '|' || c == '-' || static_cast<unsigned char>(c) >= 0x80;
}

}  // namespace

size_t SkipBlanks(std::string_view text, size_t at) {
  return std::min(text.find_first_not_of(kBlanks, at), text.size());
}

Match ReadDsmlTag(std::string_view text, DsmlTag* tag) {
  *tag = {};
  Cursor in{text};
  if (const Match m = ReadTagBegin(&in, tag); m != Match::kYes) return m;
  while (true) {
    const size_t before = in.at;
    in.Blanks();
    if (in.ended()) return in.at - before > kMaxBlanks ? Match::kNo : Match::kMaybe;
    if (in.next() == '>') break;
    if (tag->closes || in.at - before > kMaxBlanks) return Match::kNo;
    if (const Match m = ReadAttribute(&in, tag); m != Match::kYes) return m;
  }
  tag->size = in.at + 1;
  return Match::kYes;
}

Match ReadBlockBegin(std::string_view text, size_t* call) {
  *call = 0;
  Match m = BeginsCall(text);
  if (m == Match::kYes) return m;
  // A wrapper: "<" and letters, or the marker and letters; then ">".
  Cursor in{text};
  if (in.Literal("<") == Match::kYes) {
    if (!in.ended() && in.next() == ' ') return m;
  } else if (const Match marker = in.Literal(kDsml); marker != Match::kYes) {
    return marker;
  }
  const size_t begin = in.at;
  while (!in.ended() && in.at - begin < kMaxWrapper && InWrapper(in.next())) ++in.at;
  if (in.ended()) return Match::kMaybe;
  const std::string_view word = text.substr(begin, in.at - begin);
  if (word.empty()) return m;
  if (in.next() == '>') ++in.at;
  const size_t blanks = in.at;
  in.Blanks();
  if (in.at - blanks > kMaxBlanks) return m;
  if (in.ended()) return Match::kMaybe;
  const Match wrapped = BeginsCall(text.substr(in.at));
  if (wrapped == Match::kNo) return m;
  *call = in.at;
  return wrapped;
}

Match BeginsKnownTag(std::string_view text) {
  Cursor in{text};
  DsmlTag tag;
  const Match m = ReadTagBegin(&in, &tag);
  const auto known = [&](std::string_view word) {
    return m == Match::kMaybe ? word.starts_with(tag.word) : word == tag.word;
  };
  if (m == Match::kNo || std::none_of(kKnownWords.begin(), kKnownWords.end(), known)) return Match::kNo;
  return m;
}

}  // namespace dsv4
