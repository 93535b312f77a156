// The list of messages that a server renders.
#pragma once

#include "dsv4/chat.h"

namespace dsv4 {

// Returns the request with one system message, the first one, if it has system or developer messages. Later ones become
// user messages, as RenderServedPrompt describes. Their tools and response format move to the request.
ChatRequest ToServed(ChatRequest request, LaterSystem later);

}  // namespace dsv4
