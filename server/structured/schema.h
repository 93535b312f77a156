// Checks and changes the JSON schemas of requests before grammars are made of them.
#pragma once

#include <string>

#include "server/base/json.h"

namespace dsv4::server {

// For schemas that the output must follow strictly: throws ApiError 400 that names the first keyword that a grammar
// cannot enforce. Unknown keywords are annotations.
void CheckSchema(const Json& schema, const std::string& path);

// Returns the schema in which objects without any statement about properties allow all properties. {"type": "object"}
// then means any object; {"type": "object", "properties": {...}} still means these properties only.
Json OpenFreeObjects(Json schema);

// Throws ApiError 400 that names the first "pattern" that JSON strings cannot follow (pattern.h).
void CheckPatterns(const Json& schema, const std::string& path);
// The same for the parameters of a call. Their own texts are not JSON, but the values inside them are.
void CheckCallPatterns(const Json& parameters, const std::string& path);

// Returns the schema with patterns in a form that JSON strings can follow; patterns that they cannot follow are left
// out.
Json MendPatterns(Json schema);
Json MendCallPatterns(const Json& parameters);

}  // namespace dsv4::server
