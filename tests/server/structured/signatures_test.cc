// Signatures of tools, from their schemas.
#include "server/structured/signatures.h"

#include <string>

#include "gtest/gtest.h"
#include "server/structured/formats.h"

namespace dsv4::server {
namespace {

int TypesOf(const std::string& schema, const std::string& more = "{}") {
  Json parameters = {{"type", "object"}, {"properties", {{"p", Json::parse(schema)}}}};
  parameters.update(Json::parse(more));
  const Json tool = {{"type", "function"}, {"function", {{"name", "f"}, {"parameters", parameters}}}};
  const auto signatures = SignaturesOf(Json::array({tool}));
  EXPECT_EQ(signatures->size(), 1u);
  return signatures->at(0).parameters.at(0).types;
}

TEST(Signatures, Types) {
  EXPECT_EQ(TypesOf(R"({"type": "integer"})"), kIntegerType);
  EXPECT_EQ(TypesOf(R"({"type": ["string", "null"]})"), kStringType | kNullType);
  EXPECT_EQ(TypesOf(R"({"type": "number", "nullable": true})"), kNumberType | kNullType);
  EXPECT_EQ(TypesOf(R"({"enum": ["a", 1, null]})"), kStringType | kIntegerType | kNullType);
  EXPECT_EQ(TypesOf(R"({"const": true})"), kBooleanType);
  EXPECT_EQ(TypesOf(R"({"anyOf": [{"type": "array"}, {"type": "object"}]})"), kArrayType | kObjectType);
  EXPECT_EQ(TypesOf(R"({"anyOf": [{"type": "array"}, {}]})"), kAnyType);
  EXPECT_EQ(TypesOf("{}"), kAnyType);
  EXPECT_EQ(TypesOf("true"), kAnyType);
  EXPECT_EQ(TypesOf(R"({"type": "thing"})"), kAnyType);
  const std::string defs = R"({"$defs": {"n": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}})";
  EXPECT_EQ(TypesOf(R"({"$ref": "#/$defs/n"})", defs), kIntegerType);
  EXPECT_EQ(TypesOf(R"({"$ref": "#/$defs/loop"})", defs), kAnyType);
  EXPECT_EQ(TypesOf(R"({"$ref": "#/$defs/none"})", defs), kAnyType);
  EXPECT_EQ(TypesOf(R"({"$ref": "http://x/y"})", defs), kAnyType);
  // A schema that branches again and again is not followed to its end.
  Json wide = {{"type", "integer"}};
  for (int i = 0; i < 12; ++i) wide = {{"anyOf", Json::array({wide, wide})}};
  EXPECT_EQ(TypesOf(wide.dump()), kAnyType);
}

TEST(Signatures, OnlyCallsThatListTheirKeysAreExact) {
  const auto exact = [](const char* parameters, bool strict = true, bool follow_all = true) {
    const Json function = {{"name", "f"}, {"strict", strict}, {"parameters", Json::parse(parameters)}};
    return AreExact(Json::array({{{"type", "function"}, {"function", function}}}), follow_all);
  };
  EXPECT_TRUE(exact(R"({"type": "object", "properties": {"a": {"type": "string"}}})"));
  EXPECT_TRUE(exact(R"({"type": "object", "properties": {}, "additionalProperties": false})", false));
  EXPECT_TRUE(exact(R"({"type": "object", "properties": {}})", true, false));
  EXPECT_FALSE(exact(R"({"type": "object", "properties": {}})", false, false));
  EXPECT_FALSE(exact(R"({"type": "object"})"));
  EXPECT_FALSE(exact(R"({"type": "object", "properties": {"a": {}}, "additionalProperties": true})"));
  EXPECT_FALSE(exact(R"({"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "string"}})"));
  EXPECT_FALSE(exact(R"({"anyOf": [{"type": "object", "properties": {"a": {}}}]})"));
}

TEST(Signatures, OfToolsThatListTheirProperties) {
  const Json tools = Json::parse(R"([
      {"type": "function", "function": {"name": "none"}},
      {"type": "function", "function": {"name": "free", "parameters": {"type": "object"}}},
      {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}, "b": {}},
                                                                    "required": ["a"]}}}])");
  const auto signatures = SignaturesOf(tools);
  ASSERT_EQ(signatures->size(), 1u);
  EXPECT_EQ(signatures->at(0).name, "f");
  EXPECT_TRUE(signatures->at(0).parameters.at(0).required);
  EXPECT_FALSE(signatures->at(0).parameters.at(1).required);
}

}  // namespace
}  // namespace dsv4::server
