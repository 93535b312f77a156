// The routes: the function that serves a path, and its description (/openapi.json, /docs).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "server/api/api.h"

namespace dsv4::server {

struct RouteEntry {
  std::string_view method, path;  // "{name}" stands for a name
  Route serve;                    // null: the server answers at once, however busy it is
  ErrorForm form;
  const char* summary;
  const BodySpec* body = nullptr;  // null: it takes no body
};

std::span<const RouteEntry> Routes();

// Returns the route of the method, or another route of this path; null if there is no such path.
const RouteEntry* FindRoute(std::string_view path, std::string_view method);
// Returns the path of a route for a path in another form: with several slashes for one, a slash at the end, without
// "/v1", or at DeepSeek's addresses /beta/... and /anthropic/.... Any other path stays as it is.
std::string RoutePath(std::string_view path);
// Returns the route that was probably meant, if the path has "/v1" too much; otherwise "".
std::string PathMeantBy(std::string_view path);
// "GET, DELETE"
std::string MethodsOf(std::string_view path);

// OpenAPI 3.1 of all routes, and the same as a page to read.
std::string OpenApiJson(const ServerOptions& options);
std::string RoutesPage();

}  // namespace dsv4::server
