// The formats that grammars are compiled from, in the form that GrammarCompiler takes.
#pragma once

#include <string>

#include "server/base/json.h"

namespace dsv4::server {

// JSON that follows the schema. It does not begin with a blank.
Json JsonFormat(const Json& schema);
Json AnyObjectFormat();

inline constexpr const char* kCallsBegin = "<｜DSML｜tool_calls>\n";

// Returns true if a tool in OpenAI's form has "strict": true.
bool IsStrict(const Json& tool);

// Calls of these tools as the encoder writes them (src/text/format.h), from `begin`, which ends with kCallsBegin, to
// the end of the block. If `follow_all` is false, tools that are not strict take any arguments.
Json CallsFormat(const std::string& begin, const Json& tools, bool parallel, bool follow_all);

// Returns true if these calls, by CallsFormat, never repeat a key and never name one that the schema does not list.
bool AreExact(const Json& tools, bool follow_all);

}  // namespace dsv4::server
