// Structural tags of requests: formats of XGrammar that clients of vLLM and SGLang write themselves.
#pragma once

#include <string>

#include "server/base/json.h"

namespace dsv4::server {

// Returns the format of a structural tag, in the form that GrammarCompiler takes: of {format}, or of the older form
// {structures: [{begin, schema, end}], triggers}. Schemas in it get the form that JsonFormat gives them. Throws
// ApiError 400 if it has members or formats that are not supported; the compiler checks the rest.
Json TagFormat(const Json& tag, const std::string& param);

}  // namespace dsv4::server
