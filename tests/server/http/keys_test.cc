#include "server/http/keys.h"

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace dsv4::server {
namespace {

HttpRequest WithHeader(const std::string& name, const std::string& value) {
  HttpRequest request;
  request.headers = {{name, value}};
  return request;
}

TEST(ApiKeys, OnlyTheWholeKeyIsOne) {
  const std::vector<std::string> keys = {"right", "other", "aa"};
  const auto found = [&](const std::string& key) { return FindKey(keys, WithHeader("x-api-key", key)); };
  EXPECT_EQ(found("right"), 0u);
  EXPECT_EQ(found("other"), 1u);
  EXPECT_EQ(found("aa"), 2u);
  for (const char* wrong :
       {"", "r", "righ", "rightt", "rightright", "Right", "right ", " right", "righT", "ther", "a", "aaa", "aaaa"})
    EXPECT_EQ(found(wrong), std::nullopt) << wrong;
  EXPECT_EQ(FindKey({}, WithHeader("x-api-key", "right")), std::nullopt);
  EXPECT_EQ(FindKey(keys, {}), std::nullopt);
}

TEST(ApiKeys, ComeInThreeForms) {
  const auto given = [](const std::string& value) { return GivenKey(WithHeader("authorization", value)); };
  EXPECT_EQ(given("Bearer right"), "right");
  EXPECT_EQ(given("bearer   right"), "right");
  EXPECT_EQ(given("Basic dXNlcjpyaWdodA=="), "right");  // user:right
  EXPECT_EQ(given("Basic cmlnaHQ="), "right");
  for (const char* other : {"right", "Token right", "Digest right", "Bearer", "Bearer ", "Basic right", ""})
    EXPECT_NE(given(other), "right") << other;
  for (const char* name : {"cookie", "x-api-key2", "proxy-authorization"})
    EXPECT_EQ(GivenKey(WithHeader(name, "right")), "") << name;
}

// Each key's tenant is its own, and stays the same among other keys.
TEST(ApiKeys, TenantsAreApartAndLast) {
  const auto tenants = TenantsOf({"a", "b", "a", "ab"}, /*share=*/false);
  ASSERT_EQ(tenants.size(), 4u);
  EXPECT_EQ(tenants[0], tenants[2]);
  EXPECT_EQ(std::set<std::string>(tenants.begin(), tenants.end()).size(), 3u);
  EXPECT_FALSE(std::set<std::string>(tenants.begin(), tenants.end()).contains(""));
  EXPECT_EQ(TenantsOf({"x", "b", "a"}, false),
            (std::vector<std::string>{TenantsOf({"x", "y"}, false)[0], tenants[1], tenants[0]}));
  for (const std::string& tenant : tenants) EXPECT_EQ(tenant.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(TenantsOf({"a", "b"}, /*share=*/true), (std::vector<std::string>{"", ""}));
  EXPECT_EQ(TenantsOf({"a"}, false), std::vector<std::string>{""});
  EXPECT_EQ(TenantsOf({"a", "a"}, false), (std::vector<std::string>{"", ""}));
}

}  // namespace
}  // namespace dsv4::server
