// JSON values, read and written as Python's json module does, because the prompt's JSON text is defined by it: key
// order is kept, integers of any size are copied, floats have Python's spelling, and items are separated by `", "` and
// `": "`. base/json.h is not suitable: it turns integers beyond 64 bits into floats and finds keys by linear search,
// which takes minutes for a vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/status.h"

namespace dsv4 {

struct JsonMember;

struct JsonValue {
  enum class Kind : uint8_t { kNull, kFalse, kTrue, kInteger, kFloat, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  bool repeated_keys = false;       // kObject: the text repeated a key; its last value is at the place of the first
  std::string text;                 // kString: the string; kInteger, kFloat: as Python prints the number
  std::vector<JsonValue> items;     // kArray
  std::vector<JsonMember> members;  // kObject, in the text's order

  bool is(Kind k) const { return kind == k; }
  bool is_null() const { return kind == Kind::kNull; }
  bool is_bool() const { return kind == Kind::kTrue || kind == Kind::kFalse; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_array() const { return kind == Kind::kArray; }
  bool is_object() const { return kind == Kind::kObject; }

  // Returns the member with this key; null: no such member, or not an object. Linear search.
  const JsonValue* Find(std::string_view key) const;
};

struct JsonMember {
  std::string key;
  JsonValue value;
};

struct JsonReadOptions {
  bool python_constants = true;  // accepts NaN, Infinity and -Infinity, which Python's json reads and writes
};

inline constexpr int kMaxJsonValueDepth = 256;

// Parses a whole text. Refuses broken UTF-8 and nesting deeper than kMaxJsonValueDepth. A lone surrogate in a \u escape
// becomes U+FFFD. Error: kInvalidArgument, with the mistake and its byte.
Result<JsonValue> ParseJsonValue(std::string_view text, const JsonReadOptions& options = {});

// json.dumps(value, ensure_ascii=False)
std::string DumpJson(const JsonValue& value);

// Appends the body of a JSON string, without quotes. `text` may be any part of a text: escapes concern single bytes.
void AppendJsonEscaped(std::string_view text, std::string* out);

// Returns a non-negative integer that fits; -1 for anything else.
int64_t JsonToIndex(const JsonValue& value);

// The kind of a value, for messages: "a string", "null", ...
std::string_view JsonKindName(const JsonValue& value);

}  // namespace dsv4
