// Tools of POST /v1/responses: those of the request, and those that its client found on the way.
#pragma once

#include <map>
#include <string>

#include "server/api/api.h"

namespace dsv4::server {

// Tools of a namespace (MCP servers) are offered to the model as NAMESPACE__NAME and named apart again in the calls.
struct ToolName {
  std::string space, name;
  bool custom = false;  // it takes a text
};
using NamespacedTools = std::map<std::string, ToolName>;

// Those of `tools`, and of the items tool_search_output in `before` and `input`. Throws ApiError 400.
void ReadResponsesTools(const Fields& fields, const Json& before, ChatInput* input, NamespacedTools* names);

// What a search gave back, as the model is told of it.
std::string FoundTools(const Fields& output, const std::string& path);

}  // namespace dsv4::server
