// What the routes share: the served model, reading of common fields, usage, errors, ids.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/chat.h"
#include "dsv4/engine.h"
#include "dsv4/server.h"
#include "dsv4/tokenizer.h"
#include "server/base/json.h"
#include "server/http/http.h"
#include "server/metrics/metrics.h"
#include "server/observe/usage.h"
#include "server/schedule/generation.h"
#include "server/schedule/scheduler.h"

namespace dsv4::server {

class CompileQueue;
class GrammarCompiler;
class ResponseStore;

// The form of a route's errors.
enum class ErrorForm { kOpenAi, kAnthropic };

struct Api {
  const ServerOptions& options;
  const ModelInfo& model;
  const Tokenizer& tokenizer;
  Scheduler& scheduler;
  Metrics& metrics;
  GrammarCompiler* grammars;              // null: this build has none
  SamplingParams default_sampling;        // generation_config.json
  std::string fingerprint = {};           // of model, build and numerics, for system_fingerprint
  std::vector<std::string> tenants = {};  // of each API key
  CompileQueue* compile_queue = nullptr;  // null: grammars are compiled by whoever reads the request
  ResponseStore* responses = nullptr;     // null: none are kept
  int64_t created;                        // seconds since 1970
  // of a request, for the log; any thread
  std::function<void(const std::string& id, const std::string& what)> on_failure = {};
};

// The error as the route's clients expect it, made and sent.
HttpReply ErrorReply(ErrorForm form, const ApiError& error, const std::string& request_id);
void RespondError(Exchange& exchange, ErrorForm form, const ApiError& error);
Json ErrorBody(ErrorForm form, const ApiError& error, const std::string& request_id);
// A sequence that ended with kError.
ApiError ToApiError(const Status& status);

// "chatcmpl-" and 24 random hexadecimal digits.
std::string NewId(std::string_view prefix);
int64_t UnixTime();

// Reads the sampling fields and stops that the OpenAI routes have in common, vLLM's additions included.
void ReadSampling(const Api& api, const Fields& fields, GenerationParams* params);
// top_p and top_k. A top_p of 0 leaves the likeliest token only, whatever top_k is.
void ReadCuts(const Fields& fields, SamplingParams* s);
// Any number of 64 bits, with a sign or without: `dsv4 generate` prints the latter.
void ReadSeed(const Fields& fields, SamplingParams* s);
// How the OpenAI routes send a reply.
struct ReplyOptions {
  bool stream = false;
  bool include_usage = false;     // a last chunk without choices
  bool continuous_usage = false;  // in every chunk
  bool timings = false;           // in every chunk; else in the last of each choice
  bool progress = false;          // chunks tell how far the prompt is read
  int n = 1;                      // choices of each prompt
};
ReplyOptions ReadReplyOptions(const Fields& fields);
// One sequence for each of `n` choices, each with a seed of its own; what they were asked for is theirs together.
void AddSequences(Job* job, const SequenceSpec& first, int n);
std::vector<std::string> ReadStops(const Fields& fields, const char* name);
// max_tokens; what is left where the request names none or more than the context holds. Throws ApiError 400 for a
// prompt that is too long, which `param` gave, in the form's words.
int64_t LimitTokens(const Api& api, size_t prompt_tokens, std::optional<int64_t> wanted, ErrorForm form,
                    const std::string& param);
void CheckModel(const Api& api, const Fields& fields);
bool IsModelName(const ServerOptions& options, const std::string& name);
ApiError NoSuchModel(const ServerOptions& options, const std::string& name);

const char* FinishReasonName(FinishReason reason);

// ---- Chat routes

// How hard to think, as the APIs say it.
struct Reasoning {
  bool thinking = false;
  ReasoningEffort effort = ReasoningEffort::kDefault;
};
// minimal, low -> low; medium, high, xhigh -> high; max, ultra -> max, as the official service maps them; levels that
// the dialect lacks become its default. Throws for other names.
ReasoningEffort MapEffort(const Api& api, const std::string& name, const std::string& param);
Reasoning DefaultReasoning(const Api& api);

struct ChatInput {
  Json messages = Json::array();  // OpenAI form
  // [{"type": "function", "function": {...}}]; with "defer_loading": true one that is not in the system text: messages
  // tell of it where the client has found it
  Json tools = Json::array();
  Reasoning reasoning;
  bool continue_last = false;  // the last message is the beginning of the reply
  Json schema;                 // of the reply, as the model is told; null: none
};

bool IsDeferred(const Json& tool);
// What the model is told of a tool where it is found: the line that it would have in the system text.
std::string ToolText(const Json& tool);

// A custom tool takes a text: to the model it is a function with this one parameter, and its calls hold that.
Json CustomParameters();
std::string CustomInput(const std::string& arguments);  // of a call; what is no such object as it is

// tool_choice of the type "allowed_tools": {mode, tools}, in which chats name a function one level deeper than
// responses. Calls must be, or may only be, of the tools that it names, which are among `names`. Throws ApiError 400.
void ReadAllowedTools(const Fields& choice, const std::vector<std::string>& names, GenerationParams* params);

struct ChatPrompt {
  std::shared_ptr<const std::vector<TokenId>> ids;
  std::shared_ptr<const RenderedPrompt> text;
  bool starts_in_reasoning = false;
};
// What the model reads of a chat. Throws ApiError 400 that names the message.
RenderedPrompt RenderChat(const Api& api, const ChatInput& input);
// Rendered and encoded, the replies that were kept with the ids that the model wrote.
ChatPrompt MakeChatPrompt(const Api& api, const std::string& tenant, const ChatInput& input);
ChatRequest ToChatRequest(const ChatInput& input);

// What follows `route` and a slash in the request's path, with %XX decoded: clients write a name's slash as %2F.
std::string PathParameter(const HttpRequest& request, std::string_view route);

// Whose prefix cache a request uses.
std::string TenantOf(const Api& api, const HttpRequest& request);

// Starts the job: the exchange's end cancels it, and its slow reading pauses it. Throws ApiError (429, 400).
void Start(const Api& api, const ExchangePtr& exchange, const std::shared_ptr<Job>& job);

// ---- Routes: each reads a request, and answers or starts a job that will. They throw ApiError.

using Route = void (*)(const Api& api, const ExchangePtr& exchange);
void ServeChat(const Api& api, const ExchangePtr& exchange);
void ServeCompletions(const Api& api, const ExchangePtr& exchange);
void ServeMessages(const Api& api, const ExchangePtr& exchange);
void ServeCountTokens(const Api& api, const ExchangePtr& exchange);
void ServeResponses(const Api& api, const ExchangePtr& exchange);
void ServeStoredResponse(const Api& api, const ExchangePtr& exchange);
void ServeDeleteResponse(const Api& api, const ExchangePtr& exchange);
void ServeModels(const Api& api, const ExchangePtr& exchange);
void ServeTokenize(const Api& api, const ExchangePtr& exchange);
void ServeDetokenize(const Api& api, const ExchangePtr& exchange);
void ServeTokenizerInfo(const Api& api, const ExchangePtr& exchange);
void ServeVersion(const Api& api, const ExchangePtr& exchange);
void ServeModelInfo(const Api& api, const ExchangePtr& exchange);
void ServeServerInfo(const Api& api, const ExchangePtr& exchange);
void ServeChatRender(const Api& api, const ExchangePtr& exchange);
void ServeCompletionsRender(const Api& api, const ExchangePtr& exchange);
void ServeOpenApi(const Api& api, const ExchangePtr& exchange);
void ServeDocs(const Api& api, const ExchangePtr& exchange);

// Of the model's generation_config.json, where it says something sound.
SamplingParams ReadDefaultSampling(const std::string& model_dir);

}  // namespace dsv4::server
