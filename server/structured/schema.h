// JSON schemas as they come with requests, before a grammar is made of them.
#pragma once

#include <string>

#include "server/base/json.h"

namespace dsv4::server {

// Throws ApiError 400 that names the first keyword that the grammar would not hold the output to: for schemas that are
// to be followed strictly. Unknown keywords are annotations.
void CheckSchema(const Json& schema, const std::string& path);

// The schema with objects that say nothing of their properties open to any: {"type": "object"} is any object, while
// {"type": "object", "properties": {...}} holds these only.
Json OpenFreeObjects(Json schema);

// Throws ApiError 400 that names the first "pattern" that JSON strings cannot be held to (pattern.h).
void CheckPatterns(const Json& schema, const std::string& path);
// The same of a call's parameters, whose own texts are no JSON: what they hold inside is.
void CheckCallPatterns(const Json& parameters, const std::string& path);

// The schema with patterns as JSON strings can be held to them; what they cannot be held to is left out.
Json MendPatterns(Json schema);
Json MendCallPatterns(const Json& parameters);

}  // namespace dsv4::server
