// Reads the history of a chat for all chat routes, before it is rendered. An agent sends its whole history with every
// request, in the form of the service that it used before.
#pragma once

#include <optional>
#include <string>

#include "server/api/api.h"

namespace dsv4::server {

// Returns the reasoning of an assistant message: reasoning_content (DeepSeek), reasoning (vLLM), reasoning_details
// (OpenRouter) or thinking_blocks (LiteLLM); and the thinking parts of its content, without what is already there.
std::string ReadMessageReasoning(const Fields& message);

// Returns whether a part of a content is reasoning, which ReadMessageReasoning returns.
bool IsReasoningPart(const Json& part);

// Returns the arguments of a call as JSON text, "{}" if there are none. Clients send text, an object or a list.
std::string ReadArguments(const Json* arguments);

// How a history may end.
struct HistoryEnd {
  // true: the reply continues the last message. false: it is another turn. Not set: it continues a last message of the
  // assistant, but a blank message of the assistant at the end is left out.
  std::optional<bool> continues;
  bool whole_reply = false;  // the request sets the form of a reply, so that it cannot continue another one by default
  // Error if calls of the last message have no results, for `param`. "": the reply continues after the calls.
  std::string param, missing_results;
};

// Moves <think> tags at the start of assistant messages to their reasoning, and sets input->continue_last. Throws
// ApiError 400.
void FinishHistory(const HistoryEnd& end, ChatInput* input);

}  // namespace dsv4::server
