// The input of /v1/responses: items in the order that they were made, as messages in OpenAI's chat form.
#pragma once

#include "json.h"

namespace dsv4::server {

// `instructions` and `input`. Calls and outputs of tools that others run are calls and results like any; what an item
// does not hold as text becomes a short note. Throws ApiError 400.
Json ReadResponsesInput(const Fields& fields);

}  // namespace dsv4::server
