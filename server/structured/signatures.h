// The tools of a request as the parser of calls knows them.
#pragma once

#include <memory>
#include <vector>

#include "dsv4/output_parser.h"
#include "server/base/json.h"

namespace dsv4::server {

// `tools`: in OpenAI's form. A tool whose schema lists no properties is left out.
std::shared_ptr<const std::vector<ToolSignature>> SignaturesOf(const Json& tools);

}  // namespace dsv4::server
