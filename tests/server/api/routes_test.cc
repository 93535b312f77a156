#include "server/api/routes.h"

#include <string>

#include "gtest/gtest.h"

namespace dsv4::server {

namespace {

TEST(Routes, OtherAddressesLeadToTheRoute) {
  for (const char* path : {"/v1/chat/completions", "/chat/completions", "/beta/chat/completions",
                           "/beta/v1/chat/completions/", "//v1//chat/completions///", "/anthropic/chat/completions"}) {
    EXPECT_EQ(RoutePath(path), "/v1/chat/completions") << path;
  }
  EXPECT_EQ(RoutePath("/anthropic/v1/messages/count_tokens"), "/v1/messages/count_tokens");
  EXPECT_EQ(RoutePath("/models/org/name/"), "/v1/models/org/name");
  EXPECT_EQ(RoutePath("/"), "/");
  EXPECT_EQ(RoutePath("//"), "/");
  EXPECT_EQ(RoutePath("/health/"), "/health");
  for (const char* path : {"", "x", "/v1", "/v1/", "/beta", "/beta/", "/beta/metrics", "/beta/health",
                           "/anthropic/beta/v1/messages", "/betav1/messages", "/nowhere//", "/v1/v1/messages"}) {
    EXPECT_EQ(RoutePath(path), path);
  }
}

TEST(Routes, TheMostSpecificRouteCounts) {
  const auto path_of = [](std::string_view path, std::string_view method) {
    const RouteEntry* route = FindRoute(path, method);
    return route == nullptr ? "none" : std::string(route->method) + " " + std::string(route->path);
  };
  EXPECT_EQ(path_of("/v1/responses/compact", "POST"), "POST /v1/responses/compact");
  EXPECT_EQ(path_of("/v1/responses/compact", "GET"), "POST /v1/responses/compact");
  EXPECT_EQ(path_of("/v1/responses/resp_1/input_items", "GET"), "GET /v1/responses/{name}/input_items");
  EXPECT_EQ(path_of("/v1/responses/a/b/input_items", "GET"), "GET /v1/responses/{name}");
  EXPECT_EQ(path_of("/v1/responses/input_items", "DELETE"), "DELETE /v1/responses/{name}");
  EXPECT_EQ(path_of("/v1/responses//input_items", "GET"), "GET /v1/responses/{name}");
  EXPECT_EQ(path_of("/v1/responses/", "GET"), "none");
  EXPECT_EQ(MethodsOf("/v1/responses/resp_1"), "GET, DELETE");
  EXPECT_EQ(MethodsOf("/v1/responses/resp_1/input_items"), "GET");
  EXPECT_EQ(MethodsOf("/nowhere"), "");
}

TEST(Routes, PathsThatWereMeant) {
  EXPECT_EQ(PathMeantBy("/v1/v1/messages"), "/v1/messages");
  EXPECT_EQ(PathMeantBy("/v1//tokenize/"), "/tokenize");
  for (const char* path : {"/nowhere", "/v1", "/v1/nowhere", ""}) EXPECT_EQ(PathMeantBy(path), "") << path;
}

}  // namespace

}  // namespace dsv4::server
