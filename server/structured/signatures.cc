#include "server/structured/signatures.h"

#include <algorithm>
#include <string>
#include <utility>

namespace dsv4::server {

namespace {

constexpr int kMaxSchemas = 64;  // of one parameter; a larger one has any type

uint8_t TypeNamed(const Json& name) {
  static constexpr std::pair<const char*, uint8_t> kNames[] = {
      {"string", kStringType}, {"integer", kIntegerType}, {"number", kNumberType}, {"boolean", kBooleanType},
      {"null", kNullType},     {"object", kObjectType},   {"array", kArrayType}};
  for (const auto& [known, type] : kNames) {
    if (name == known) return type;
  }
  return kAnyType;
}

uint8_t TypeOf(const Json& value) {
  if (value.is_string()) return kStringType;
  if (value.is_number_integer()) return kIntegerType;
  if (value.is_number()) return kNumberType;
  if (value.is_boolean()) return kBooleanType;
  if (value.is_null()) return kNullType;
  return value.is_object() ? kObjectType : kArrayType;
}

// The types of one parameter.
class TypeReader {
 public:
  explicit TypeReader(const Json& parameters) : root_(parameters) {}

  uint8_t Read(const Json& schema) {
    if (!schema.is_object() || ++schemas_ > kMaxSchemas) return kAnyType;
    uint8_t types = ReadOne(schema);
    if (types != kAnyType && schema.value("nullable", Json()) == true) types |= kNullType;
    return types;
  }

 private:
  uint8_t ReadOne(const Json& schema) {
    if (const auto at = schema.find("type"); at != schema.end()) {
      return at->is_array() ? Join(*at, TypeNamed) : TypeNamed(*at);
    }
    if (const auto at = schema.find("const"); at != schema.end()) return TypeOf(*at);
    if (const auto at = schema.find("enum"); at != schema.end() && at->is_array()) return Join(*at, TypeOf);
    if (const auto at = schema.find("$ref"); at != schema.end() && at->is_string()) return ReadReference(*at);
    for (const char* name : {"anyOf", "oneOf"}) {
      const auto at = schema.find(name);
      if (at != schema.end() && at->is_array()) return Join(*at, [this](const Json& one) { return Read(one); });
    }
    return kAnyType;
  }

  uint8_t ReadReference(const std::string& target) {
    if (!target.starts_with("#/")) return kAnyType;
    const Json* schema = &root_;
    for (size_t at = 2; at <= target.size();) {  // names with escapes are not found
      const size_t end = std::min(target.find('/', at), target.size());
      if (!schema->is_object()) return kAnyType;
      const auto next = schema->find(target.substr(at, end - at));
      if (next == schema->end()) return kAnyType;
      schema = &*next;
      at = end + 1;
    }
    return Read(*schema);
  }

  template <typename Each>
  static uint8_t Join(const Json& list, const Each& each) {
    uint8_t types = kAnyType;
    for (const Json& item : list) {
      const uint8_t one = each(item);
      if (one == kAnyType) return kAnyType;
      types |= one;
    }
    return types;
  }

  const Json& root_;
  int schemas_ = 0;
};

}  // namespace

std::shared_ptr<const std::vector<ToolSignature>> SignaturesOf(const Json& tools) {
  auto signatures = std::make_shared<std::vector<ToolSignature>>();
  for (const Json& tool : tools) {
    const Json& function = tool["function"];
    const auto parameters = function.find("parameters");
    if (parameters == function.end() || !parameters->is_object()) continue;
    const auto properties = parameters->find("properties");
    if (properties == parameters->end() || !properties->is_object()) continue;
    ToolSignature signature{.name = function["name"].get<std::string>(), .parameters = {}};
    const Json required = parameters->value("required", Json::array());
    for (const auto& [name, schema] : properties->items()) {
      const bool needed = required.is_array() && std::find(required.begin(), required.end(), name) != required.end();
      signature.parameters.push_back({.name = name, .types = TypeReader(*parameters).Read(schema), .required = needed});
    }
    signatures->push_back(std::move(signature));
  }
  return signatures;
}

}  // namespace dsv4::server
