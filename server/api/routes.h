// The routes: what answers a path, and what is written about it (/openapi.json, /docs).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "server/api/api.h"

namespace dsv4::server {

struct RouteEntry {
  std::string_view method, path;  // a path that ends with a slash takes a name behind it
  Route serve;                    // null: by the server itself, at once, however busy the rest is
  ErrorForm form;
  const char* summary;
  const BodySpec* body = nullptr;  // null: it takes none
};

std::span<const RouteEntry> Routes();

// That of the method, or another one of this path; null: there is no such path.
const RouteEntry* FindRoute(std::string_view path, std::string_view method);
// The route that was meant by a path with a slash at its end, or with "/v1" once too often or too seldom; or "".
std::string PathMeantBy(std::string_view path);
// "GET, DELETE"
std::string MethodsOf(std::string_view path);

// OpenAPI 3.1 of all routes; the same as a page to read.
std::string OpenApiJson(const ServerOptions& options);
std::string RoutesPage();

}  // namespace dsv4::server
