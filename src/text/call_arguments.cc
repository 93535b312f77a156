#include "text/call_arguments.h"

#include <algorithm>

#include "dsv4/json_text.h"
#include "text/json_value.h"

namespace dsv4 {

namespace {

constexpr JsonReadOptions kPlainJson = {.python_constants = false};

uint8_t TypeOf(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return kNullType;
    case JsonValue::Kind::kFalse:
    case JsonValue::Kind::kTrue:
      return kBooleanType;
    case JsonValue::Kind::kInteger:
      return kIntegerType | kNumberType;
    case JsonValue::Kind::kFloat:
      return kNumberType;
    case JsonValue::Kind::kString:
      return kStringType;
    case JsonValue::Kind::kArray:
      return kArrayType;
    case JsonValue::Kind::kObject:
      return kObjectType;
  }
  return kAnyType;
}

std::string Quoted(std::string_view text) {
  std::string json = "\"";
  AppendJsonEscaped(text, &json);
  return json + "\"";
}

std::string_view WithoutBlanks(std::string_view json) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = std::min(json.find_first_not_of(kBlanks), json.size());
  return json.substr(begin, json.find_last_not_of(kBlanks) + 1 - begin);
}

bool Has(const ToolSignature& tool, std::string_view parameter) {
  return std::any_of(tool.parameters.begin(), tool.parameters.end(),
                     [&](const ToolSignature::Parameter& p) { return p.name == parameter; });
}

bool IsWrapper(const ToolSignature* tool, const std::string& key) {
  return tool != nullptr && (key == "arguments" || key == "input") && !Has(*tool, key);
}

// The only required parameter, if it may be a string.
const ToolSignature::Parameter* OnlyText(const ToolSignature& tool) {
  const ToolSignature::Parameter* only = nullptr;
  for (const ToolSignature::Parameter& p : tool.parameters) {
    if (!p.required) continue;
    if (only != nullptr) return nullptr;
    only = &p;
  }
  return only != nullptr && (only->types & kStringType) != 0 ? only : nullptr;
}

std::optional<std::string> Unwrap(const ToolSignature& tool, const std::string& json) {
  const auto value = ParseJsonValue(json, kPlainJson);
  if (!value.ok()) return std::nullopt;
  if (value->is_object()) return value->repeated_keys ? std::nullopt : std::optional(json);
  if (!value->is_string()) return std::nullopt;
  const auto inner = ParseJsonValue(value->text, kPlainJson);
  if (inner.ok() && inner->is_object()) return inner->repeated_keys ? std::nullopt : std::optional(value->text);
  const ToolSignature::Parameter* parameter = OnlyText(tool);
  if (parameter == nullptr) return std::nullopt;
  return "{" + Quoted(parameter->name) + ": " + json + "}";
}

}  // namespace

const ToolSignature* FindSignature(const std::vector<ToolSignature>* tools, std::string_view tool) {
  if (tools == nullptr) return nullptr;
  const auto found = std::find_if(tools->begin(), tools->end(), [&](const ToolSignature& s) { return s.name == tool; });
  return found == tools->end() ? nullptr : &*found;
}

uint8_t TypesOf(const ToolSignature* tool, std::string_view parameter) {
  if (tool == nullptr) return kAnyType;
  for (const ToolSignature::Parameter& p : tool->parameters) {
    if (p.name == parameter) return p.types;
  }
  return kAnyType;
}

bool IsMisspelt(const ToolSignature* tool, std::string_view parameter) {
  const size_t begin = parameter.find_first_not_of(' ');
  if (tool == nullptr || begin == parameter.npos || Has(*tool, parameter)) return false;
  return Has(*tool, parameter.substr(begin, parameter.find_last_not_of(' ') + 1 - begin));
}

std::optional<std::string> ValueToJson(std::string_view value, bool is_string, uint8_t types) {
  const bool may_be_string = types == kAnyType || (types & kStringType) != 0;
  if (is_string && may_be_string) return Quoted(value);
  const auto parsed = ParseJsonValue(value, kPlainJson);
  if (!parsed.ok()) return is_string || may_be_string ? std::optional(Quoted(value)) : std::nullopt;
  const uint8_t type = TypeOf(*parsed);
  const bool as_text = is_string ? (type & types) == 0 : types == kStringType && type != kStringType;
  return as_text ? Quoted(value) : std::string(WithoutBlanks(value));
}

std::optional<std::string> ArgumentsToJson(const ToolSignature* tool, const std::vector<Argument>& arguments) {
  if (arguments.size() == 1 && IsWrapper(tool, arguments[0].key)) return Unwrap(*tool, arguments[0].json);
  std::string json = "{";
  for (const Argument& argument : arguments) {
    if (json.size() > 1) json += ", ";
    json += Quoted(argument.key) + ": " + argument.json;
  }
  return json + "}";
}

std::optional<std::string> ObjectToJson(const ToolSignature* tool, std::string_view text) {
  const auto object = ParseJsonValue(text, kPlainJson);
  if (!object.ok() || !object->is_object() || object->repeated_keys) return std::nullopt;
  if (object->members.size() == 1 && IsWrapper(tool, object->members[0].key)) {
    return Unwrap(*tool, DumpJson(object->members[0].value));
  }
  return std::string(text);
}

}  // namespace dsv4
