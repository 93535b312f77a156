// The tools of POST /v1/responses: the tools of the request, and tools that the client found later.
#pragma once

#include <map>
#include <string>

#include "server/api/api.h"

namespace dsv4::server {

// The model gets a tool of a namespace (MCP servers) as NAMESPACE__NAME. Calls get the two names back.
struct ToolName {
  std::string space, name;
  bool custom = false;  // it takes a text
};
using NamespacedTools = std::map<std::string, ToolName>;

// Reads `tools`, and the items tool_search_output in `before` and `input`. Throws ApiError 400.
void ReadResponsesTools(const Fields& fields, const Json& before, ChatInput* input, NamespacedTools* names);

// Returns the result of a tool search as the model reads it.
std::string FoundTools(const Fields& output, const std::string& path);

}  // namespace dsv4::server
