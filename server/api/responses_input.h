// The input of /v1/responses: items in the order that they were made, as messages in OpenAI's chat form.
#pragma once

#include "server/base/json.h"

namespace dsv4::server {

// The items of `input`, a text as the one message that it stands for, without what no text can be made of: what is kept
// of a conversation, and dumped. Throws ApiError 400.
Json KeptItems(const Fields& fields);

// `instructions`, then the items of `before` (a conversation that was kept; null: none) and `input`. Calls and outputs
// of tools that others run are calls and results like any; what an item does not hold as text becomes a short note.
// Throws ApiError 400.
Json ReadResponsesInput(const Fields& fields, const Json* before = nullptr);

}  // namespace dsv4::server
