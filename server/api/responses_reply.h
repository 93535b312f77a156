// The reply of /v1/responses and /v1/responses/compact, whole or as events.
#pragma once

#include <memory>
#include <string>

#include "server/api/reply.h"
#include "server/api/responses_tools.h"

namespace dsv4::server {

struct ResponsesOptions {
  bool stream = false;
  bool thinking = false;  // the model's text begins with reasoning
  bool logprobs = false;
  bool hides_reasoning = false;  // no reasoning items
  bool summary = false;          // the reasoning is the summary of its item, not the content
  bool sealed = false;           // reasoning items have encrypted_content
  bool compacts = false;         // the model's text is a summary of the conversation: the output is a compaction item
  std::string asked;             // fields of the request that the response repeats; a JSON object; "": none
  NamespacedTools names;
  std::string items;     // the conversation so far if the response is stored; a JSON array; "": it is not stored
  std::string retained;  // items before the model's own, separated by commas
  int num_retained = 0;
};

// `response`: its first members.
std::shared_ptr<Reply> MakeResponsesReply(const Api& api, ExchangePtr exchange, Json response,
                                          ResponsesOptions options);

}  // namespace dsv4::server
