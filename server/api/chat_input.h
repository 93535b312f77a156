// The body of POST /v1/chat/completions, except the fields about its reply.
#pragma once

#include <string>
#include <vector>

#include "server/api/api.h"
#include "server/api/output_form.h"

namespace dsv4::server {

// Reads messages, tools and reasoning for a reply of the given form. Writes their settings for the reply (calls,
// thinking budget) to `params` and the names of tools that take a text to `custom_tools`. Throws ApiError 400.
ChatInput ReadChatInput(const Api& api, const Fields& fields, const OutputForm& form, GenerationParams* params,
                        std::vector<std::string>* custom_tools);

// Reads a body that is only encoded, not answered.
ChatInput ReadChatToEncode(const Api& api, const Fields& fields);

}  // namespace dsv4::server
