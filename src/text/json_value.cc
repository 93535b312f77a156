#include "text/json_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <unordered_map>

#include "base/str.h"
#include "text/utf8.h"

namespace dsv4 {

namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// The value of a JSON number with fraction or exponent. Out of range it becomes infinity or zero, as in Python.
double ParseDouble(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc::result_out_of_range) return value;
  // Position of the first digit that is not zero, relative to the decimal point, plus the exponent.
  const bool negative = text[0] == '-';
  int64_t scale = 0, exponent = 0;
  bool seen_point = false, seen_nonzero = false;
  for (size_t i = negative ? 1 : 0; i < text.size(); ++i) {
    if (text[i] == '.') {
      seen_point = true;
    } else if (!IsDigit(text[i])) {
      const bool minus = text[i + 1] == '-';
      for (size_t j = i + (IsDigit(text[i + 1]) ? 1 : 2); j < text.size(); ++j) {
        exponent = std::min<int64_t>(exponent * 10 + (text[j] - '0'), int64_t{1} << 50);
      }
      if (minus) exponent = -exponent;
      break;
    } else {
      seen_nonzero = seen_nonzero || text[i] != '0';
      if (!seen_point && seen_nonzero) ++scale;
      if (seen_point && !seen_nonzero) --scale;
    }
  }
  value = scale + exponent > 0 ? std::numeric_limits<double>::infinity() : 0.0;
  return negative ? -value : value;
}

// repr(float): the shortest digits that read back the same. Exponent form below 1e-4 and for 1e16 and above.
std::string PythonFloat(double value) {
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (IsDigit(c)) digits.push_back(c);
  }
  int exponent = 0;
  const size_t sign = text[e + 1] == '+' ? 1 : 0;
  std::from_chars(text.data() + e + 1 + sign, text.data() + text.size(), exponent);
  std::string out = text[0] == '-' ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1);
    if (digits.size() > 1) out += "." + digits.substr(1);
    return StrCat(out, exponent < 0 ? "e-" : "e+", std::abs(exponent) < 10 ? "0" : "", std::abs(exponent));
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

void DropRepeatedKeys(JsonValue* object) {
  std::vector<JsonMember>& members = object->members;
  std::unordered_map<std::string_view, size_t> first;
  first.reserve(members.size());
  std::vector<bool> dropped(members.size(), false);
  for (size_t i = 0; i < members.size(); ++i) {
    const auto [it, is_new] = first.try_emplace(members[i].key, i);
    if (is_new) continue;
    members[it->second].value = std::move(members[i].value);
    dropped[i] = true;
    object->repeated_keys = true;
  }
  if (!object->repeated_keys) return;
  size_t kept = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    if (dropped[i]) continue;
    if (kept != i) members[kept] = std::move(members[i]);
    ++kept;
  }
  members.resize(kept);
}

class Reader {
 public:
  Reader(std::string_view text, const JsonReadOptions& options) : text_(text), options_(options) {}

  Status Read(JsonValue* value) {
    if (const size_t valid = ValidUtf8Prefix(text_); valid != text_.size()) {
      at_ = valid;
      return Error("broken UTF-8");
    }
    DSV4_RETURN_IF_ERROR(ReadValue(0, value));
    SkipSpace();
    return at_ == text_.size() ? Status() : Error("unexpected text after the value");
  }

 private:
  Status Error(std::string_view what) const {
    return InvalidArgument(StrCat("not valid JSON: ", what, " at byte ", at_));
  }

  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void SkipSpace() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }

  bool Take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Status ReadValue(int depth, JsonValue* value) {
    using Kind = JsonValue::Kind;
    SkipSpace();
    switch (Peek()) {
      case '{':
        return ReadObject(depth, value);
      case '[':
        return ReadArray(depth, value);
      case '"':
        value->kind = Kind::kString;
        return ReadString(&value->text);
      default:
        break;
    }
    if (Peek() == '-' || IsDigit(Peek())) return ReadNumber(value);
    if (Take("null")) return value->kind = Kind::kNull, Status();
    if (Take("true")) return value->kind = Kind::kTrue, Status();
    if (Take("false")) return value->kind = Kind::kFalse, Status();
    if (TakeConstant("NaN", value) || TakeConstant("Infinity", value)) return {};
    return Error(at_ == text_.size() ? "the text ends before a value" : "expected a value");
  }

  bool TakeConstant(std::string_view word, JsonValue* value) {
    if (!options_.python_constants || !Take(word)) return false;
    value->kind = JsonValue::Kind::kFloat;
    value->text = word;
    return true;
  }

  Status ReadNumber(JsonValue* value) {
    if (TakeConstant("-Infinity", value)) return {};
    const size_t begin = at_;
    if (Peek() == '-') ++at_;
    if (Peek() == '0') {
      ++at_;
    } else if (!TakeDigits()) {
      return Error("a number without digits");
    }
    bool is_float = false;
    if (Peek() == '.') {
      is_float = true;
      ++at_;
      if (!TakeDigits()) return Error("a number without digits after the point");
    }
    if (Peek() == 'e' || Peek() == 'E') {
      is_float = true;
      ++at_;
      if (Peek() == '+' || Peek() == '-') ++at_;
      if (!TakeDigits()) return Error("an exponent without digits");
    }
    const std::string_view spelled = text_.substr(begin, at_ - begin);
    value->kind = is_float ? JsonValue::Kind::kFloat : JsonValue::Kind::kInteger;
    if (is_float) {
      value->text = PythonFloat(ParseDouble(spelled));
    } else {
      value->text = spelled == "-0" ? "0" : spelled;
    }
    return {};
  }

  bool TakeDigits() {
    const size_t begin = at_;
    while (IsDigit(Peek())) ++at_;
    return at_ != begin;
  }

  Status ReadString(std::string* out) {
    ++at_;  // the opening quote
    while (true) {
      const size_t run = at_;
      while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
             static_cast<unsigned char>(text_[at_]) >= 0x20) {
        ++at_;
      }
      out->append(text_.substr(run, at_ - run));
      if (at_ == text_.size()) return Error("unterminated string");
      if (Take("\"")) return {};
      if (text_[at_] != '\\') return Error("unescaped control character in a string");
      ++at_;
      DSV4_RETURN_IF_ERROR(ReadEscape(out));
    }
  }

  Status ReadEscape(std::string* out) {
    static constexpr std::string_view kNames = "\"\\/bfnrt", kBytes = "\"\\/\b\f\n\r\t";
    const char name = Peek();
    if (const size_t i = kNames.find(name); i != kNames.npos && at_ < text_.size()) {
      ++at_;
      out->push_back(kBytes[i]);
      return {};
    }
    if (name != 'u') return Error("unknown escape");
    ++at_;
    uint32_t code;
    if (!ReadHex(&code)) return Error("a \\u escape without four hexadecimal digits");
    if (code >= 0xD800 && code < 0xDC00) {
      const size_t behind = at_;
      uint32_t low;
      if (Take("\\u") && ReadHex(&low) && low >= 0xDC00 && low < 0xE000) {
        AppendUtf8(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00), out);
        return {};
      }
      at_ = behind;
    }
    AppendUtf8(code >= 0xD800 && code < 0xE000 ? 0xFFFD : code, out);
    return {};
  }

  bool ReadHex(uint32_t* code) {
    const std::string_view digits = text_.substr(at_, 4);
    *code = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *code, 16);
    if (error != std::errc() || end != digits.data() + 4) return false;
    at_ += 4;
    return true;
  }

  Status ReadArray(int depth, JsonValue* value) {
    DSV4_RETURN_IF_ERROR(Enter(depth));
    value->kind = JsonValue::Kind::kArray;
    SkipSpace();
    if (Take("]")) return {};
    while (true) {
      DSV4_RETURN_IF_ERROR(ReadValue(depth + 1, &value->items.emplace_back()));
      SkipSpace();
      if (Take("]")) return {};
      if (!Take(",")) return Error("expected ',' or ']' after an element");
    }
  }

  Status ReadObject(int depth, JsonValue* value) {
    DSV4_RETURN_IF_ERROR(Enter(depth));
    value->kind = JsonValue::Kind::kObject;
    SkipSpace();
    if (Take("}")) return {};
    while (true) {
      SkipSpace();
      if (Peek() != '"') return Error("no key");
      JsonMember& member = value->members.emplace_back();
      DSV4_RETURN_IF_ERROR(ReadString(&member.key));
      SkipSpace();
      if (!Take(":")) return Error("expected ':' after a key");
      DSV4_RETURN_IF_ERROR(ReadValue(depth + 1, &member.value));
      SkipSpace();
      if (Take("}")) break;
      if (!Take(",")) return Error("expected ',' or '}' after a member");
    }
    DropRepeatedKeys(value);
    return {};
  }

  Status Enter(int depth) {
    ++at_;  // the bracket
    return depth < kMaxJsonValueDepth ? Status() : Error(StrCat("nested deeper than ", kMaxJsonValueDepth, " levels"));
  }

  std::string_view text_;
  JsonReadOptions options_;
  size_t at_ = 0;
};

void AppendJson(const JsonValue& value, std::string* out) {
  using Kind = JsonValue::Kind;
  switch (value.kind) {
    case Kind::kNull:
      out->append("null");
      return;
    case Kind::kFalse:
      out->append("false");
      return;
    case Kind::kTrue:
      out->append("true");
      return;
    case Kind::kInteger:
    case Kind::kFloat:
      out->append(value.text);
      return;
    case Kind::kString:
      out->push_back('"');
      AppendJsonEscaped(value.text, out);
      out->push_back('"');
      return;
    case Kind::kArray:
      out->push_back('[');
      for (const JsonValue& item : value.items) {
        if (&item != value.items.data()) out->append(", ");
        AppendJson(item, out);
      }
      out->push_back(']');
      return;
    case Kind::kObject:
      out->push_back('{');
      for (const JsonMember& member : value.members) {
        out->append(&member == value.members.data() ? "\"" : ", \"");
        AppendJsonEscaped(member.key, out);
        out->append("\": ");
        AppendJson(member.value, out);
      }
      out->push_back('}');
      return;
  }
}

}  // namespace

const JsonValue* JsonValue::Find(std::string_view key) const {
  for (const JsonMember& member : members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

Result<JsonValue> ParseJsonValue(std::string_view text, const JsonReadOptions& options) {
  JsonValue value;
  DSV4_RETURN_IF_ERROR(Reader(text, options).Read(&value));
  return value;
}

std::string DumpJson(const JsonValue& value) {
  std::string out;
  AppendJson(value, &out);
  return out;
}

void AppendJsonEscaped(std::string_view text, std::string* out) {
  static constexpr std::string_view kBytes = "\"\\\b\f\n\r\t", kNames = "\"\\bfnrt";
  static constexpr std::string_view kHex = "0123456789abcdef";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && c != '"' && c != '\\') {
      out->push_back(c);
    } else if (const size_t i = kBytes.find(c); i != kBytes.npos) {
      out->push_back('\\');
      out->push_back(kNames[i]);
    } else {
      out->append("\\u00");
      out->push_back(kHex[byte >> 4]);
      out->push_back(kHex[byte & 15]);
    }
  }
}

int64_t JsonToIndex(const JsonValue& value) {
  if (!value.is(JsonValue::Kind::kInteger)) return -1;
  int64_t index = -1;
  const char* end = value.text.data() + value.text.size();
  const auto result = std::from_chars(value.text.data(), end, index);
  return result.ec == std::errc() && index >= 0 ? index : -1;
}

std::string_view JsonKindName(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return "null";
    case JsonValue::Kind::kFalse:
      return "false";
    case JsonValue::Kind::kTrue:
      return "true";
    case JsonValue::Kind::kInteger:
      return "an integer";
    case JsonValue::Kind::kFloat:
      return "a number";
    case JsonValue::Kind::kString:
      return "a string";
    case JsonValue::Kind::kArray:
      return "an array";
    case JsonValue::Kind::kObject:
      return "an object";
  }
  return "";
}

}  // namespace dsv4
