// The arguments of one call: values as JSON, by the types of the parameters if these are known.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/output_parser.h"

namespace dsv4 {

// Returns the signature of the tool; null: not known.
const ToolSignature* FindSignature(const std::vector<ToolSignature>* tools, std::string_view tool);

// Returns the types of the tool's parameter; kAnyType: not known. `tool` may be null.
uint8_t TypesOf(const ToolSignature* tool, std::string_view parameter);

// Returns true if the tool has this parameter, but with other blanks around it.
bool IsMisspelt(const ToolSignature* tool, std::string_view parameter);

// Returns the JSON text of a value. `is_string`: its tag says that it is a string. nullopt: the tag says that it is
// JSON, which it is not, and the parameter cannot be a string.
std::optional<std::string> ValueToJson(std::string_view value, bool is_string, uint8_t types);

struct Argument {
  std::string key;
  std::string json;
};

// Returns the JSON text of all arguments. If the only one is called "arguments" or "input", and the tool has no such
// parameter, returns the object inside it, or takes its text for the only required parameter if that is a string.
// nullopt: it cannot be either of them.
std::optional<std::string> ArgumentsToJson(const ToolSignature* tool, const std::vector<Argument>& arguments);

// Returns the arguments that a call states as one JSON object. nullopt: it is no object, or repeats a key.
std::optional<std::string> ObjectToJson(const ToolSignature* tool, std::string_view text);

}  // namespace dsv4
