// The body of POST /v1/chat/completions, but for what its reply is like.
#pragma once

#include <string>
#include <vector>

#include "server/api/api.h"

namespace dsv4::server {

// Messages, tools and reasoning; what they say of the reply (calls, thinking budget) goes to `params`, the names of
// tools that take a text to `custom_tools`. Throws ApiError 400.
ChatInput ReadChatInput(const Api& api, const Fields& fields, GenerationParams* params,
                        std::vector<std::string>* custom_tools);

// Of a body that is encoded and not answered.
ChatInput ReadChatToEncode(const Api& api, const Fields& fields);

}  // namespace dsv4::server
