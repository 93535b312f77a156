// The input of /v1/responses: turns its items, in their order, into messages in OpenAI's chat form.
#pragma once

#include <string>

#include "server/base/json.h"

namespace dsv4::server {

// Returns the items of `input` that are stored with a conversation; a text becomes one message. Items that cannot
// become text are left out. `continued`: the reply continues the last item, so both are one turn. Throws ApiError 400.
Json KeptItems(const Fields& fields, bool continued = false);

// Returns an item as lists of items have it: with a type, and an id if it has none.
Json ListedItem(Json item, const std::string& id);

// Returns whether the input ends in an item that asks to compact the conversation.
bool EndsInTrigger(const Fields& fields);

// Returns the messages of `instructions`, the items of `before` (a stored conversation; null: none) and `input`. Calls
// and results of tools that other services run become ordinary calls and results. Parts without text become short
// notes. Throws ApiError 400.
Json ReadResponsesInput(const Fields& fields, const Json* before = nullptr);

}  // namespace dsv4::server
