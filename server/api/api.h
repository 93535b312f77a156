// Shared by all routes: the served model, reading of common fields, usage, errors, ids.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
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

// The form of a route's error bodies.
enum class ErrorForm { kOpenAi, kAnthropic };

struct Api {
  const ServerOptions& options;
  const ModelInfo& model;
  const Tokenizer& tokenizer;
  Scheduler& scheduler;
  Metrics& metrics;
  GrammarCompiler* grammars;              // null: this build has no grammars
  SamplingParams default_sampling;        // from generation_config.json
  std::string fingerprint = {};           // identifies model, build and numerics, for system_fingerprint
  std::vector<std::string> tenants = {};  // one per API key
  CompileQueue* compile_queue = nullptr;  // null: the thread that reads the request compiles its grammar
  ResponseStore* responses = nullptr;     // null: responses are not stored
  int64_t created;                        // seconds since 1970
  // logs the failure of a request; any thread may call it
  std::function<void(const std::string& id, const std::string& what)> on_failure = {};
};

// Makes or sends the error in the form that the route's clients expect.
HttpReply ErrorReply(ErrorForm form, const ApiError& error, const std::string& request_id);
void RespondError(Exchange& exchange, ErrorForm form, const ApiError& error);
Json ErrorBody(ErrorForm form, const ApiError& error, const std::string& request_id);
// For a sequence that ended with kError.
ApiError ToApiError(const Status& status);

// Returns `prefix` and 24 random hexadecimal digits, as in "chatcmpl-...".
std::string NewId(std::string_view prefix);
int64_t UnixTime();

// Reads the sampling fields and stops that the OpenAI routes share, including vLLM's additions.
void ReadSampling(const Api& api, const Fields& fields, GenerationParams* params);
// Reads top_p and top_k. A top_p of 0 keeps only the likeliest token, whatever top_k is.
void ReadCuts(const Fields& fields, SamplingParams* s);
// Reads the seed: any signed or unsigned number of 64 bits. `dsv4 generate` prints unsigned ones.
void ReadSeed(const Fields& fields, SamplingParams* s);
// How the OpenAI routes send a reply.
struct ReplyOptions {
  bool stream = false;
  bool include_usage = false;     // adds a last chunk without choices
  bool continuous_usage = false;  // usage in every chunk
  bool timings = false;           // timings in every chunk, otherwise in the last chunk of each choice
  bool progress = false;          // chunks report the progress of the prompt
  bool token_ids = false;         // adds the ids of the prompt and the reply
  int n = 1;                      // choices per prompt
};
ReplyOptions ReadReplyOptions(const Fields& fields);
// Returns the value of max_tokens under one of these names, or `otherwise`. A negative value means no limit. Throws
// ApiError 400 if two of them differ.
std::optional<int64_t> ReadMaxTokens(const Fields& fields, std::initializer_list<const char*> names,
                                     std::optional<int64_t> otherwise = std::nullopt);
// Adds one sequence per choice, each with its own seed. All share the parameters and the prompt of `first`.
void AddSequences(Job* job, const SequenceSpec& first, int n);
std::vector<std::string> ReadStops(const Fields& fields, const char* name);
// Returns max_tokens, or the number of tokens that remain if it is not set or is larger than the context. If the prompt
// is too long, throws ApiError 400 in the words of the form; `param` is the field of the prompt.
int64_t LimitTokens(const Api& api, size_t prompt_tokens, std::optional<int64_t> wanted, ErrorForm form,
                    const std::string& param);
void CheckModel(const Api& api, const Fields& fields);
bool IsModelName(const ServerOptions& options, const std::string& name);
ApiError NoSuchModel(const ServerOptions& options, const std::string& name);

const char* FinishReasonName(FinishReason reason);

// ---- Chat routes

// The reasoning effort, in the terms of the APIs.
struct Reasoning {
  bool thinking = false;
  ReasoningEffort effort = ReasoningEffort::kDefault;
};
// Maps minimal and low to low; medium, high and xhigh to high; max and ultra to max, as the official service does.
// Levels that the chat dialect does not have become its default. Throws ApiError 400 for other names.
ReasoningEffort MapEffort(const Api& api, const std::string& name, const std::string& param);
Reasoning DefaultReasoning(const Api& api);

struct ChatInput {
  Json messages = Json::array();  // in OpenAI's form
  // [{"type": "function", "function": {...}}]. A tool with "defer_loading": true is not in the system text; a message
  // describes it after the client has found it.
  Json tools = Json::array();
  Reasoning reasoning;
  bool continue_last = false;  // the last message is the beginning of the reply
  bool drop_thinking = true;   // leaves the reasoning of earlier turns out of a prompt without tools
  LaterSystem later_system = LaterSystem::kPlain;
  Json schema;  // of the reply, shown to the model; null: none
};

bool IsDeferred(const Json& tool);
// Returns the model's description of a tool that was found: the line that the tool would have in the system text.
std::string ToolText(const Json& tool);

// A custom tool takes a text. For the model it is a function with this one parameter.
Json CustomParameters();
std::string CustomInput(
    const std::string& arguments);  // the text in a call's arguments; other arguments are returned as they are

// Reads a tool_choice of type "allowed_tools": {mode, tools}. Chat requests name a function one level deeper than
// responses do. The calls must be, or may only be, calls of the named tools, which must be in `names`. Throws ApiError
// 400.
void ReadAllowedTools(const Fields& choice, const std::vector<std::string>& names, GenerationParams* params);

struct ChatPrompt {
  std::shared_ptr<const std::vector<TokenId>> ids;
  std::shared_ptr<const RenderedPrompt> text;
  bool starts_in_reasoning = false;
};
// Returns the prompt text of a chat. Throws ApiError 400 that names the message.
RenderedPrompt RenderChat(const Api& api, const ChatInput& input);
// Renders and encodes a chat. Cached replies keep the ids that the model wrote.
ChatPrompt MakeChatPrompt(const Api& api, const std::string& tenant, const ChatInput& input);
ChatRequest ToChatRequest(const ChatInput& input);

// Returns the part of the request's path after `route` and a slash, with %XX decoded, because clients write the slash
// of a name as %2F.
std::string PathParameter(const HttpRequest& request, std::string_view route);

// Returns the tenant whose prefix cache a request uses.
std::string TenantOf(const Api& api, const HttpRequest& request);

// Starts the job. The end of the exchange cancels it; a slow reader pauses it. Throws ApiError (429, 400).
void Start(const Api& api, const ExchangePtr& exchange, const std::shared_ptr<Job>& job);

// ---- Routes. Each reads a request and answers it or starts a job that will answer it. They throw ApiError.

using Route = void (*)(const Api& api, const ExchangePtr& exchange);
void ServeChat(const Api& api, const ExchangePtr& exchange);
void ServeCompletions(const Api& api, const ExchangePtr& exchange);
void ServeMessages(const Api& api, const ExchangePtr& exchange);
void ServeCountTokens(const Api& api, const ExchangePtr& exchange);
void ServeResponses(const Api& api, const ExchangePtr& exchange);
void ServeStoredResponse(const Api& api, const ExchangePtr& exchange);
void ServeCompactResponse(const Api& api, const ExchangePtr& exchange);
void ServeResponseTokens(const Api& api, const ExchangePtr& exchange);
void ServeInputItems(const Api& api, const ExchangePtr& exchange);
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

}  // namespace dsv4::server
