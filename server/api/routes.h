// The routes: the function that serves a path, and its description (/openapi.json, /docs).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "server/api/api.h"

namespace dsv4::server {

struct RouteEntry {
  std::string_view method, path;  // a path that ends with a slash takes a name after it
  Route serve;                    // null: the server answers at once, however busy it is
  ErrorForm form;
  const char* summary;
  const BodySpec* body = nullptr;  // null: it takes no body
};

std::span<const RouteEntry> Routes();

// Returns the route of the method, or another route of this path; null if there is no such path.
const RouteEntry* FindRoute(std::string_view path, std::string_view method);
// Returns the route that was probably meant, if the path has a slash at its end, or "/v1" added or missing; otherwise
// "".
std::string PathMeantBy(std::string_view path);
// "GET, DELETE"
std::string MethodsOf(std::string_view path);

// OpenAPI 3.1 of all routes, and the same as a page to read.
std::string OpenApiJson(const ServerOptions& options);
std::string RoutesPage();

}  // namespace dsv4::server
