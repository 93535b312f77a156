// The formats that grammars are compiled from, as GrammarCompiler takes them.
#pragma once

#include <string>

#include "server/base/json.h"

namespace dsv4::server {

// JSON that follows the schema; it begins with no blank.
Json JsonFormat(const Json& schema);
Json AnyObjectFormat();

inline constexpr const char* kCallsBegin = "<｜DSML｜tool_calls>\n";

// "strict": true, of a tool in OpenAI's form.
bool IsStrict(const Json& tool);

// Calls of these tools as the encoder writes them (src/text/format.h), from `begin`, which ends with kCallsBegin, to
// the end of the block. Tools that are not strict take any arguments where `follow_all` is false.
Json CallsFormat(const std::string& begin, const Json& tools, bool parallel, bool follow_all);

}  // namespace dsv4::server
