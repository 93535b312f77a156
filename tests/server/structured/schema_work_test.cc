// Schemas that are small to send and much work to read.
#include <chrono>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/nano_tokenizer.h"
#include "server/structured/formats.h"
#include "server/structured/grammar.h"
#include "server/structured/schema.h"

namespace dsv4::server {
namespace {

// Texts of all paths together would have gigabytes.
TEST(SchemaWork, DeepOnesWithLongNamesAreCheckedWithoutTheTextOfTheirPaths) {
  Json schema = {{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < 3000; ++i) schema["properties"]["a" + std::to_string(i)] = {{"type", "integer"}};
  schema["properties"]["last"] = {{"not", {{"type", "string"}}}};
  for (int i = 0; i < 80; ++i)
    schema = {{"type", "object"}, {"properties", {{std::string(9000, static_cast<char>('a' + i % 26)), schema}}}};
  const auto begin = std::chrono::steady_clock::now();
  try {
    CheckSchema(schema, "schema");
    ADD_FAILURE();
  } catch (const ApiError& error) {
    EXPECT_LT(std::string(error.what()).size(), 1000u);
    EXPECT_THAT(error.what(), ::testing::StartsWith("schema.properties.bbbb"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("....properties.last: \"not\""));
  }
  CheckPatterns(schema, "schema");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

// The library copied inner schemas at every depth, and compared the values of choices in pairs, uncounted.
TEST(SchemaWork, SchemasWhoseReadingTakesTooMuchWorkAreRefused) {
  const auto compiler = GrammarCompiler::Create(NanoTokenizer(), NanoTokenizer().vocab_size(), {1});
  if (compiler == nullptr) GTEST_SKIP() << "this build has no XGrammar";
  Json leaf = {{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < 7000; ++i) leaf["properties"]["a" + std::to_string(i)] = {{"type", "integer"}};
  const auto nest = [&leaf](const auto& around) {
    Json schema = leaf;
    for (int i = 0; i < 80; ++i) schema = around(std::move(schema));
    return schema;
  };
  Json values[2] = {Json::array(), Json::array()};
  for (int i = 0; i < 2 * 40000; ++i) values[i % 2].push_back("v" + std::to_string(i));
  const Json schemas[] = {
      nest([](Json s) {
        return Json({{"type", "object"}, {"properties", {{std::string(9000, 'n'), std::move(s)}}}});
      }),
      nest([](Json s) {
        return Json({{"type", "object"}, {"additionalProperties", std::move(s)}});
      }),
      nest([](Json s) {
        return Json({{"type", "array"}, {"items", std::move(s)}});
      }),
      nest([](Json s) {
        return Json({{"type", "array"}, {"prefixItems", Json::array({std::move(s)})}});
      }),
      nest([](Json s) {
        return Json({{"type", Json::array({"object"})}, {"properties", {{"p", std::move(s)}}}});
      }),
      nest([](Json s) {
        return Json({{"anyOf", Json::array({std::move(s), {{"type", "null"}}})}});
      }),
      {{"oneOf", Json::array({{{"enum", values[0]}}, {{"enum", values[1]}}})}},
  };
  for (const Json& schema : schemas) {
    const auto begin = std::chrono::steady_clock::now();
    const auto grammar = compiler->Compile(Dump(JsonFormat(schema)));
    ASSERT_FALSE(grammar.ok());
    EXPECT_THAT(grammar.status().message(), ::testing::HasSubstr("steps of work, the limit"));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(9));
  }
}

}  // namespace
}  // namespace dsv4::server
