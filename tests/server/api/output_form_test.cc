// The output form of a request: how much memory is used before its size is known.
#include "server/api/output_form.h"

#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/json.h"
#include "support/allocations.h"

namespace dsv4::server {
namespace {

using ::testing::HasSubstr;

int64_t AllocatedBy(const std::function<void()>& call) {
  const int64_t before = test::num_allocated_bytes;
  call();
  return test::num_allocated_bytes - before;
}

std::string RefusalOf(const Json& body) {
  try {
    (void)ReadResponseFormat(Fields(body, ""));
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400);
    return error.param + "|" + error.what();
  }
  return "";
}

TEST(DumpSize, IsTheSizeOfTheText) {
  const Json value = {{"a", {1, -2.5, 1e300, true, nullptr}}, {"\"\\\n\u0001ü€😀", Json::object()}, {"", Json::array()}};
  EXPECT_EQ(DumpSize(value), Dump(value).size());
  EXPECT_EQ(DumpSize("x"), 3u);
}

TEST(OutputForm, AMillionChoicesAreRefusedBeforeTheyAreMadeIntoAGrammar) {
  Json choices = Json::array();
  for (int i = 0; i < 1'000'000; ++i) choices.push_back(std::to_string(i));
  const std::string what = "1000000 choices, a grammar of 40888890 bytes; the limit is 1048576";
  for (const bool nested : {false, true}) {
    const Json body = nested ? Json{{"structured_outputs", {{"choice", choices}}}} : Json{{"guided_choice", choices}};
    const std::string param = nested ? "structured_outputs.choice" : "guided_choice";
    std::string refusal;
    EXPECT_LT(AllocatedBy([&] { refusal = RefusalOf(body); }), 20'000);
    EXPECT_EQ(refusal, param + "|" + param + ": " + what);
  }
  EXPECT_THAT(RefusalOf({{"guided_choice", {"a", 1}}}), HasSubstr("expected strings"));
  EXPECT_THAT(RefusalOf({{"guided_choice", Json::array()}}), HasSubstr("an empty list"));
}

// The limit is the limit of the grammar, to the byte.
TEST(OutputForm, AsManyChoicesAreTakenAsOneGrammarHolds) {
  Json choices = Json::array();
  for (int i = 0; i < 20'000; ++i) choices.push_back("a\"" + std::to_string(i));
  const OutputForm form = ReadResponseFormat(Fields({{"guided_choice", choices}}, ""));
  const size_t elements = Dump(form.format["elements"]).size() - 1;  // a comma for each, and no bracket
  choices.push_back(
      std::string((size_t{1} << 20) - elements - Dump(Json{{"type", "const_string"}, {"value", ""}}).size(), 'b'));
  EXPECT_THAT(RefusalOf({{"guided_choice", choices}}), HasSubstr("a grammar of 1048577 bytes"));
  choices.back() = choices.back().get<std::string>().substr(1);
  EXPECT_EQ(RefusalOf({{"guided_choice", choices}}), "");
}

// The description is copied four times; dumping the schema to measure it would cost as much as two more copies.
TEST(OutputForm, AStrictSchemaIsMeasuredWithoutItsText) {
  constexpr size_t kText = 1'000'000;
  const auto body_of = [](size_t text) {
    const Json schema = {{"type", "object"}, {"description", std::string(text, 'x')}};
    return Json{{"response_format",
                 {{"type", "json_schema"}, {"json_schema", {{"name", "a"}, {"strict", true}, {"schema", schema}}}}}};
  };
  const Json body = body_of(kText);
  EXPECT_LT(AllocatedBy([&] { EXPECT_EQ(RefusalOf(body), ""); }), 9 * kText / 2);
  const Json large = body_of(3 * kText);
  EXPECT_LT(AllocatedBy([&] { EXPECT_THAT(RefusalOf(large), HasSubstr("schemas of 3000034 bytes; the limit is")); }),
            20'000);
  const Json guided = {{"guided_json", {{"description", std::string(3 * kText, 'x')}}}};
  EXPECT_LT(AllocatedBy([&] { EXPECT_THAT(RefusalOf(guided), HasSubstr("guided_json: schemas of")); }), 20'000);
}

}  // namespace
}  // namespace dsv4::server
