#include "server/structured/formats.h"

#include <algorithm>
#include <utility>

#include "server/structured/grammar.h"
#include "server/structured/schema.h"

namespace dsv4::server {

namespace {

// Characters between two tokens of JSON: enough for indentation, but not endless blanks.
constexpr int kMaxWhitespace = 20;
// In calls: one, as the encoder writes it. An array could otherwise hold a page of blanks.
constexpr int kMaxWhitespaceInCalls = 1;
constexpr const char* kCallsEnd = "</｜DSML｜tool_calls>";
constexpr const char* kInvokeEnd = "</｜DSML｜invoke>\n";

Json CallTag(const Json& tool, bool follow_schema) {
  const Json& function = tool["function"];
  const auto parameters = function.find("parameters");
  const bool given = parameters != function.end() && parameters->is_object() && !parameters->empty();
  Json schema = given ? MendCallPatterns(OpenFreeObjects(*parameters))
                      : Json({{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}});
  if (!follow_schema) schema = {{"type", "object"}, {"additionalProperties", true}};
  Json content = {{"type", "json_schema"}, {"style", "deepseek_xml"}, {"max_whitespace_cnt", kMaxWhitespaceInCalls}};
  // A marker inside a text would end the text for the reader of the call.
  content["excludes"] = Json::array({kDsmlMarker});
  content["json_schema"] = std::move(schema);
  return {{"type", "tag"},
          {"begin", "<｜DSML｜invoke name=\"" + function["name"].get<std::string>() + "\">\n"},
          {"content", std::move(content)},
          {"end", kInvokeEnd}};
}

// Objects with other properties than the listed ones may repeat a key. So may what is not known to be an object.
bool ListsItsKeys(const Json& parameters) {
  for (const char* name : {"$ref", "const", "enum", "anyOf", "oneOf", "allOf", "patternProperties",
                           "unevaluatedProperties", "minProperties", "maxProperties"}) {
    if (parameters.contains(name)) return false;
  }
  const auto properties = parameters.find("properties");
  return properties != parameters.end() && properties->is_object() &&
         parameters.value("additionalProperties", Json(false)) == false;
}

}  // namespace

Json JsonFormat(const Json& schema) {
  return {{"type", "json_schema"},
          {"json_schema", MendPatterns(OpenFreeObjects(schema))},
          {"max_whitespace_cnt", kMaxWhitespace}};
}

Json AnyObjectFormat() { return JsonFormat({{"type", "object"}}); }

bool IsStrict(const Json& tool) {
  const Json& function = tool["function"];
  const auto strict = function.find("strict");
  return strict != function.end() && *strict == true;
}

bool AreExact(const Json& tools, bool follow_all) {
  return std::all_of(tools.begin(), tools.end(), [&](const Json& tool) {
    const Json& function = tool["function"];
    const auto parameters = function.find("parameters");
    const bool given = parameters != function.end() && parameters->is_object() && !parameters->empty();
    return (follow_all || IsStrict(tool)) && (!given || ListsItsKeys(*parameters));
  });
}

Json CallsFormat(const std::string& begin, const Json& tools, bool parallel, bool follow_all) {
  Json tags = Json::array();
  for (const Json& tool : tools) tags.push_back(CallTag(tool, follow_all || IsStrict(tool)));
  return {{"type", "sequence"},
          {"elements", Json::array({{{"type", "const_string"}, {"value", begin}},
                                    {{"type", "tags_with_separator"},
                                     {"tags", std::move(tags)},
                                     {"separator", ""},
                                     {"at_least_one", true},
                                     {"stop_after_first", !parallel}},
                                    {{"type", "const_string"}, {"value", kCallsEnd}}})}};
}

}  // namespace dsv4::server
