// The fields of request bodies: names, types, bounds and meaning. Bodies are read by these tables (Fields in json.h),
// and /openapi.json is generated from them.
#pragma once

#include "server/base/json.h"

namespace dsv4::server {

// The body of each route, named by the function that reads it (api.h).
extern const BodySpec kChatBody, kCompletionsBody, kResponsesBody, kResponsesPromptBody, kMessagesBody,
    kCountTokensBody, kTokenizeBody, kDetokenizeBody, kChatRenderBody, kCompletionsRenderBody;

}  // namespace dsv4::server
