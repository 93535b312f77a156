#include "server/api/api.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <set>
#include <utility>

#include "dsv4/json_text.h"
#include "server/base/random.h"
#include "server/http/keys.h"

namespace dsv4::server {

namespace {

const char* OpenAiType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 504:
      return "timeout_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

const char* AnthropicType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

Json ErrorBody(ErrorForm form, const ApiError& error, const std::string& request_id) {
  if (form == ErrorForm::kAnthropic) {
    return {{"type", "error"},
            {"error", {{"type", AnthropicType(error.status)}, {"message", error.what()}}},
            {"request_id", request_id}};
  }
  return {{"error",
           {{"message", error.what()},
            {"type", OpenAiType(error.status)},
            {"param", error.param.empty() ? Json(nullptr) : Json(error.param)},
            {"code", error.code.empty() ? Json(nullptr) : Json(error.code)}}}};
}

HttpReply ErrorReply(ErrorForm form, const ApiError& error, const std::string& id) {
  HttpReply reply{.status = error.status, .type = "application/json", .body = Dump(ErrorBody(form, error, id))};
  if (form == ErrorForm::kAnthropic) reply.headers.emplace_back("request-id", id);
  if (error.retry_after_s > 0) reply.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  // A retry would run out of time again.
  if (error.status == 504) reply.headers.emplace_back("x-should-retry", "false");
  if (error.status == 401) reply.headers.emplace_back("WWW-Authenticate", "Basic realm=\"dsv4\", charset=\"UTF-8\"");
  return reply;
}

void RespondError(Exchange& exchange, ErrorForm form, const ApiError& error) {
  HttpReply reply = ErrorReply(form, error, exchange.request().id);
  exchange.Respond(reply.status, reply.type, std::move(reply.body), std::move(reply.headers));
}

ApiError ToApiError(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
      return {400, status.message()};
    case StatusCode::kResourceExhausted:
      return {503, status.message()};
    case StatusCode::kCancelled:
      return {504, status.message()};
    case StatusCode::kUnsupported:
      return {501, status.message()};
    default:
      return {500, status.message()};
  }
}

std::string NewId(std::string_view prefix) { return std::string(prefix) + RandomHex(24); }

int64_t UnixTime() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void AddSequences(Job* job, const SequenceSpec& first, int n) {
  for (int i = 0; i < n; ++i) {
    job->sequences.push_back(first);
    job->sequences.back().choice = static_cast<uint64_t>(i);
  }
}

// Uses the words that the clients of each API look for. Then they shorten the conversation and do not give up.
void RefuseLength(ErrorForm form, int64_t tokens, int64_t limit, const std::string& param) {
  const std::string n = std::to_string(tokens), most = std::to_string(limit);
  throw ApiError(400,
                 form == ErrorForm::kAnthropic
                     ? "prompt is too long: " + n + " tokens > " + most + " maximum"
                     : "This model's maximum context length is " + most + " tokens. However, your " + param +
                           " resulted in " + n + " tokens. Please reduce the length of the " + param + ".",
                 param, "context_length_exceeded");
}

int64_t LimitTokens(const Api& api, size_t prompt_tokens, std::optional<int64_t> wanted, ErrorForm form,
                    const std::string& param) {
  const auto prompt = static_cast<int64_t>(prompt_tokens);
  const int64_t context = api.model.max_context;
  const int64_t limit = api.options.max_prompt_tokens > 0 ? std::min(api.options.max_prompt_tokens, context) : context;
  if (prompt == 0) throw ApiError(400, "the prompt is empty: there is nothing to continue", param);
  // The reply needs at least one token.
  if (prompt > limit || (prompt == limit && wanted != 0 && limit == context)) RefuseLength(form, prompt, limit, param);
  return std::min(wanted.value_or(context - prompt), context - prompt);
}

void CheckModel(const Api& api, const Fields& fields) {
  const auto model = fields.Text("model");
  if (api.options.strict_model && model && !IsModelName(api.options, *model)) throw NoSuchModel(api.options, *model);
}

bool IsModelName(const ServerOptions& options, const std::string& name) {
  const auto is_served = [&](std::string_view text) {
    return text == options.model_name ||
           std::find(options.other_names.begin(), options.other_names.end(), text) != options.other_names.end();
  };
  // Claude Code's mark of a context of a million tokens, which some routers pass on.
  constexpr std::string_view kLongContext = "[1m]";
  const std::string_view base = std::string_view(name).substr(0,
                                                              name.size() - std::min(name.size(), kLongContext.size()));
  return is_served(name) || (LowerAscii(name.substr(base.size())) == kLongContext && is_served(base));
}

ApiError NoSuchModel(const ServerOptions& options, const std::string& name) {
  return {404, "there is no model '" + name + "'; this server serves '" + options.model_name + "'", "model",
          "model_not_found"};
}

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kToolCalls:
      return "tool_calls";
    default:
      return "stop";
  }
}

ReasoningEffort MapEffort(const Api& api, const std::string& name, const std::string& param) {
  const bool preview = api.options.dialect == ChatDialect::kV4Preview;
  if (name == "minimal" || name == "low") return preview ? ReasoningEffort::kDefault : ReasoningEffort::kLow;
  if (name == "medium" || name == "high" || name == "xhigh") return ReasoningEffort::kHigh;
  if (name == "max" || name == "ultra") return ReasoningEffort::kMax;
  Refuse(param, param + " is \"" + name + "\"; expected none, minimal, low, medium, high, xhigh, max or ultra");
}

Reasoning DefaultReasoning(const Api& api) {
  return {
      .thinking = api.options.default_thinking,
      .effort = api.options.dialect == ChatDialect::kV4Preview ? ReasoningEffort::kDefault : ReasoningEffort::kHigh};
}

bool IsDeferred(const Json& tool) {
  const auto deferred = tool.is_object() ? tool.find("defer_loading") : tool.end();
  return tool.is_object() && deferred != tool.end() && *deferred == true;
}

std::string ToolText(const Json& tool) { return Dump(tool["function"]); }

ChatRequest ToChatRequest(const ChatInput& input) {
  Json request = {{"messages", input.messages}};
  for (const Json& tool : input.tools) {
    if (!IsDeferred(tool)) request["tools"].push_back(tool);
  }
  if (input.schema.is_object()) request["response_format"] = input.schema;
  auto parsed = ParseChatRequest(Dump(request));
  if (!parsed.ok()) throw ApiError(400, parsed.status().message(), "messages");
  // Arguments that a model once wrote do not make the history invalid.
  for (Message& message : parsed->messages) {
    for (ToolCall& call : message.tool_calls) {
      const size_t first = call.arguments.find_first_not_of(" \t\r\n");
      const bool is_object = first != std::string::npos && call.arguments[first] == '{';
      if (!is_object && Json::accept(call.arguments)) call.arguments = "{\"arguments\": " + call.arguments + "}";
    }
  }
  parsed->thinking = input.reasoning.thinking;
  parsed->effort = input.reasoning.thinking ? input.reasoning.effort : ReasoningEffort::kDefault;
  parsed->drop_thinking = input.drop_thinking;
  parsed->messages.back().wo_eos = input.continue_last;
  return std::move(*parsed);
}

Json CustomParameters() {
  return {{"type", "object"},
          {"properties", {{"input", {{"type", "string"}, {"description", "The text that the tool takes."}}}}},
          {"required", Json::array({"input"})}};
}

std::string CustomInput(const std::string& arguments) {
  const Json parsed = Json::parse(arguments, nullptr, /*allow_exceptions=*/false);
  const bool holds = parsed.is_object() && parsed.contains("input") && parsed["input"].is_string();
  return holds ? parsed["input"].get<std::string>() : arguments;
}

void ReadAllowedTools(const Fields& choice, const std::vector<std::string>& names, GenerationParams* params) {
  const Json* inner = choice.Object("allowed_tools");
  const Json* list = inner == nullptr ? choice.Array("tools")
                                      : Fields(*inner, "tool_choice.allowed_tools").Array("tools");
  const std::string mode = inner == nullptr ? choice.Text("mode").value_or("auto")
                                            : Fields(*inner, "tool_choice.allowed_tools").Text("mode").value_or("auto");
  if (mode != "auto" && mode != "required")
    Refuse("tool_choice", "tool_choice.allowed_tools.mode must be auto or required");
  const std::set<std::string_view> known(names.begin(), names.end());
  std::set<std::string> allowed;
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
    const Fields tool((*list)[i], "tool_choice.tools[" + std::to_string(i) + "]");
    const std::string type = tool.Text("type").value_or("function");
    if (type != "function" && type != "custom") continue;  // tools of other types were skipped in `names`, too
    const Json* named = tool.Object(type.c_str());
    const std::string name = (named == nullptr ? tool : Fields(*named, type)).Text("name").value_or("");
    if (!known.contains(name)) Refuse("tool_choice", "tool_choice names \"" + name + "\", which is not among tools");
    allowed.insert(name);
  }
  if (allowed.empty()) {
    params->calls_allowed = false;
  } else {
    (mode == "required" ? params->required_calls : params->allowed_calls).assign(allowed.begin(), allowed.end());
  }
}

std::string TenantOf(const Api& api, const HttpRequest& request) {
  const auto key = FindKey(api.options.api_keys, request);
  return key ? api.tenants[*key] : "";
}

RenderedPrompt RenderChat(const Api& api, const ChatInput& input) {
  auto rendered = RenderServedPrompt(ToChatRequest(input), api.options.dialect, input.later_system);
  if (!rendered.ok()) throw ApiError(400, rendered.status().message(), "messages");
  return std::move(*rendered);
}

ChatPrompt MakeChatPrompt(const Api& api, const std::string& tenant, const ChatInput& input) {
  ChatPrompt prompt;
  prompt.text = std::make_shared<const RenderedPrompt>(RenderChat(api, input));
  prompt.ids = std::make_shared<const std::vector<TokenId>>(api.scheduler.EncodePrompt(tenant, *prompt.text));
  const std::vector<TextRange>& contents = prompt.text->content_ranges;
  const bool ends_in_header = contents.empty() || contents.back().end < prompt.text->text.size();
  prompt.starts_in_reasoning = ends_in_header && prompt.text->text.ends_with("<think>");
  return prompt;
}

std::string PathParameter(const HttpRequest& request, std::string_view route) {
  const std::string_view path = request.path;
  if (path.size() <= route.size() + 1) return "";
  std::string text;
  for (size_t i = route.size() + 1; i < path.size(); ++i) {
    const char* end = path.data() + std::min(i + 3, path.size());
    unsigned byte = 0;
    if (path[i] == '%' && end - (path.data() + i) == 3 && std::from_chars(end - 2, end, byte, 16).ptr == end) {
      text += static_cast<char>(byte);
      i += 2;
    } else {
      text += path[i];
    }
  }
  return text;
}

void Start(const Api& api, const ExchangePtr& exchange, const std::shared_ptr<Job>& job) {
  job->id = exchange->request().id;
  job->tenant = TenantOf(api, exchange->request());
  if (api.options.request_timeout_s > 0) {
    job->deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                       std::chrono::duration<double>(api.options.request_timeout_s));
  }
  if (api.scheduler.device_failed()) {
    ApiError error(503, "the device has failed and is being reopened; try again later");
    error.retry_after_s = 10;
    throw error;
  }
  const Status status = api.scheduler.Submit(job);
  if (!status.ok()) {
    ApiError error = ToApiError(status);
    if (status.code() == StatusCode::kResourceExhausted) {
      error.status = 429;
      error.retry_after_s = 2;
      api.metrics.AddRejection("queue_full");
    }
    throw error;
  }
  Scheduler& scheduler = api.scheduler;
  exchange->OnClose([&scheduler, job] { scheduler.Cancel(job); });
  exchange->OnPressure([&scheduler, job](bool on) { scheduler.SetPaused(job, on); });
}

}  // namespace dsv4::server
