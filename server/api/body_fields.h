// The fields of requests' bodies: names, types, bounds, what they mean. Bodies are read by these tables (Fields in
// json.h), and /openapi.json is made of them.
#pragma once

#include "server/base/json.h"

namespace dsv4::server {

// Of each route, by the function that reads it (api.h).
extern const BodySpec kChatBody, kCompletionsBody, kResponsesBody, kMessagesBody, kCountTokensBody, kTokenizeBody,
    kDetokenizeBody, kChatRenderBody, kCompletionsRenderBody;

}  // namespace dsv4::server
