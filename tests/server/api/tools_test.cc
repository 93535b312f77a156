#include "server/api/api.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/json.h"

namespace dsv4::server {
namespace {

// A list of allowed tools may be as long as a body, and each choice of the request keeps a copy.
TEST(ReadAllowedTools, ANameThatIsRepeatedCountsOnce) {
  const Json a = {{"type", "function"}, {"name", "a"}};
  const Json choice = {{"type", "allowed_tools"}, {"mode", "auto"}, {"tools", Json::array({a, a, a})}};
  GenerationParams params;
  ReadAllowedTools(Fields(choice, "tool_choice"), {"a", "b"}, &params);
  EXPECT_EQ(params.allowed_calls, std::vector<std::string>{"a"});
  EXPECT_THROW(ReadAllowedTools(Fields(choice, "tool_choice"), {"b"}, &params), ApiError);
}

}  // namespace
}  // namespace dsv4::server
