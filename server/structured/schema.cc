#include "server/structured/schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "server/structured/pattern.h"

namespace dsv4::server {

namespace {

constexpr std::array<std::string_view, 13> kNotEnforced = {
    "not",          "if",       "then",        "else",        "dependentRequired", "dependentSchemas",
    "dependencies", "contains", "minContains", "maxContains", "unevaluatedItems",  "$dynamicRef",
    "$recursiveRef"};
// If a schema has one of these keywords, the grammar ignores the other ones.
constexpr std::array<std::string_view, 6> kAlone = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};
// Keywords that restrict a value.
constexpr std::array<std::string_view, 22> kNarrowing = {"$ref",
                                                         "const",
                                                         "enum",
                                                         "anyOf",
                                                         "oneOf",
                                                         "allOf",
                                                         "properties",
                                                         "required",
                                                         "patternProperties",
                                                         "propertyNames",
                                                         "minProperties",
                                                         "maxProperties",
                                                         "items",
                                                         "prefixItems",
                                                         "minItems",
                                                         "maxItems",
                                                         "minLength",
                                                         "maxLength",
                                                         "pattern",
                                                         "minimum",
                                                         "maximum",
                                                         "additionalProperties"};
constexpr std::array<std::string_view, 7> kKnownFormats = {"email",    "date",     "time", "date-time",
                                                           "duration", "hostname", "uuid"};
constexpr double kMaxMultipleOf = 1024;

template <size_t N>
bool Contains(const std::array<std::string_view, N>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// The way to a schema inside another one. It becomes a text only for an error: the texts of all ways can be a thousand
// times longer than the schema.
class Path {
 public:
  explicit Path(std::string_view root) : name_(root) {}
  Path(const Path& outer, std::string_view keyword, std::string_view name)
      : outer_(&outer), keyword_(keyword), name_(name) {}
  Path(const Path& outer, std::string_view keyword, size_t index) : outer_(&outer), keyword_(keyword), index_(index) {}

  // A long way without its middle.
  std::string Text() const {
    std::vector<const Path*> parts;
    for (const Path* part = this; part != nullptr; part = part->outer_) parts.push_back(part);
    std::string text;
    for (auto at = parts.rbegin(); at != parts.rend(); ++at) {
      if (text.size() > kMaxText && parts.rend() - at > kLastParts) {
        text += "...";
        at = parts.rend() - kLastParts;
      }
      text += (*at)->OwnText();
    }
    return text;
  }

 private:
  static constexpr size_t kMaxText = 200, kMaxName = 100;  // bytes
  static constexpr ptrdiff_t kLastParts = 2;

  std::string OwnText() const {
    std::string text = outer_ == nullptr ? "" : "." + std::string(keyword_);
    if (index_ != kNoIndex) return text + "[" + std::to_string(index_) + "]";
    if (outer_ != nullptr && !name_.empty()) text += ".";
    if (name_.size() <= kMaxName) return text.append(name_);
    size_t end = kMaxName;
    while (end > 0 && (static_cast<unsigned char>(name_[end]) & 0xC0) == 0x80) --end;  // the start of a character
    return text.append(name_.substr(0, end)).append("...");
  }

  static constexpr size_t kNoIndex = std::numeric_limits<size_t>::max();
  const Path* const outer_ = nullptr;
  const std::string_view keyword_, name_;
  const size_t index_ = kNoIndex;
};

[[noreturn]] void RefuseKeyword(const Path& path, const std::string& what) {
  const std::string text = path.Text();
  Refuse(text, text + ": " + what + " cannot be enforced; remove it, or remove strict");
}

// Calls visit(schema, path) for every direct subschema.
template <typename Visit>
void ForEachInner(const Json& schema, const Path& path, const Visit& visit) {
  for (const char* name : {"properties", "patternProperties", "$defs", "definitions"}) {
    const auto it = schema.find(name);
    if (it == schema.end() || !it->is_object()) continue;
    for (const auto& [key, inner] : it->items()) visit(inner, Path(path, name, key));
  }
  for (const char* name : {"items", "additionalProperties", "propertyNames", "unevaluatedProperties"}) {
    const auto it = schema.find(name);
    if (it != schema.end() && it->is_object()) visit(*it, Path(path, name, ""));
  }
  for (const char* name : {"prefixItems", "anyOf", "oneOf", "allOf"}) {
    const auto it = schema.find(name);
    if (it == schema.end() || !it->is_array()) continue;
    for (size_t i = 0; i < it->size(); ++i) visit((*it)[i], Path(path, name, i));
  }
}

void CheckMultipleOf(const Json& schema, const Path& path) {
  const Json& step = schema["multipleOf"];
  const auto type = schema.find("type");
  const bool whole = step.is_number() && step.get<double>() >= 1 && step.get<double>() <= kMaxMultipleOf &&
                     step.get<double>() == std::floor(step.get<double>());
  bool bounded = false;
  for (const char* name : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
    bounded = bounded || schema.contains(name);
  }
  if (!whole || bounded || type == schema.end() || *type != "integer") {
    RefuseKeyword(path, "multipleOf other than a whole number up to 1024 of an integer without bounds");
  }
}

void CheckSchema(const Json& schema, const Path& path) {
  if (schema.is_boolean()) return;
  if (!schema.is_object()) {
    const std::string text = path.Text();
    Refuse(text, text + " must be a JSON schema: an object");
  }
  std::string_view alone;
  for (const std::string_view name : kAlone) {
    if (alone.empty() && schema.contains(name)) alone = name;
  }
  for (const auto& [key, value] : schema.items()) {
    if (Contains(kNotEnforced, key)) RefuseKeyword(path, "\"" + key + "\"");
    if (key == "uniqueItems" && value == true) RefuseKeyword(path, "\"uniqueItems\"");
    if (key == "allOf" && value.is_array() && value.size() > 1) {
      RefuseKeyword(path, "\"allOf\" of several schemas");
    }
    if (key == "$ref" && (!value.is_string() || !value.get_ref<const std::string&>().starts_with('#'))) {
      RefuseKeyword(path, "a \"$ref\" to another document");
    }
    if (!alone.empty() && key != alone && Contains(kNarrowing, key)) {
      RefuseKeyword(path, "\"" + key + "\" next to \"" + std::string(alone) + "\"");
    }
  }
  if (schema.contains("multipleOf")) CheckMultipleOf(schema, path);
  if (schema.contains("minLength") || schema.contains("maxLength")) {
    const auto format = schema.find("format");
    const bool known = format != schema.end() && format->is_string() &&
                       Contains(kKnownFormats, format->get_ref<const std::string&>());
    if (schema.contains("pattern") || known) {
      RefuseKeyword(path, std::string("\"") + (schema.contains("minLength") ? "minLength" : "maxLength") +
                              "\" next to \"" + (schema.contains("pattern") ? "pattern" : "format") + "\"");
    }
  }
  ForEachInner(schema, path, [](const Json& inner, const Path& inner_path) { CheckSchema(inner, inner_path); });
}

void CheckPatterns(const Json& schema, const Path& path) {
  if (!schema.is_object()) return;
  const auto pattern = schema.find("pattern");
  if (pattern != schema.end() && pattern->is_string() && !HoldsInJson(pattern->get_ref<const std::string&>())) {
    RefuseKeyword(path, "a \"pattern\" that looks ahead or behind, or whose texts all need an escape in JSON,");
  }
  ForEachInner(schema, path, [](const Json& inner, const Path& inner_path) { CheckPatterns(inner, inner_path); });
}

}  // namespace

void CheckSchema(const Json& schema, const std::string& path) { CheckSchema(schema, Path(path)); }

Json OpenFreeObjects(Json schema) {
  if (schema.is_array()) {
    for (Json& item : schema) item = OpenFreeObjects(std::move(item));
    return schema;
  }
  if (!schema.is_object()) return schema;
  const auto type = schema.find("type");
  if (type != schema.end() && *type == "object" && !schema.contains("properties") &&
      !schema.contains("patternProperties") && !schema.contains("additionalProperties") &&
      !schema.contains("unevaluatedProperties")) {
    schema["additionalProperties"] = true;
  }
  for (auto& [key, value] : schema.items()) {
    if (key != "const" && key != "enum" && key != "default" && key != "examples") {
      value = OpenFreeObjects(std::move(value));
    }
  }
  return schema;
}

void CheckPatterns(const Json& schema, const std::string& path) { CheckPatterns(schema, Path(path)); }

void CheckCallPatterns(const Json& parameters, const std::string& path) {
  if (!parameters.is_object()) return;
  ForEachInner(parameters, Path(path), [](const Json& parameter, const Path& its_path) {
    if (!parameter.is_object()) return;
    ForEachInner(parameter, its_path, [](const Json& inner, const Path& way) { CheckPatterns(inner, way); });
  });
}

Json MendPatterns(Json schema) {
  if (schema.is_array()) {
    for (Json& item : schema) item = MendPatterns(std::move(item));
    return schema;
  }
  if (!schema.is_object()) return schema;
  const auto pattern = schema.find("pattern");
  if (pattern != schema.end() && pattern->is_string()) {
    const auto& text = pattern->get_ref<const std::string&>();
    if (HoldsInJson(text)) {
      *pattern = AsciiPattern(text);
    } else {
      schema.erase(pattern);
    }
  }
  for (auto& [key, value] : schema.items()) {
    if (key == "const" || key == "enum" || key == "default" || key == "examples") continue;
    value = MendPatterns(std::move(value));
  }
  return schema;
}

Json MendCallPatterns(const Json& parameters) {
  Json mended = MendPatterns(parameters);
  const auto own = parameters.find("properties");
  if (own == parameters.end() || !own->is_object()) return mended;
  auto at = mended["properties"].begin();  // in the same order
  for (const Json& parameter : *own) {
    if (parameter.is_object() && parameter.contains("pattern")) (*at)["pattern"] = parameter["pattern"];
    ++at;
  }
  return mended;
}

}  // namespace dsv4::server
