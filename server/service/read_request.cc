#include "server/service/read_request.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "server/api/body_fields.h"
#include "server/api/chat_input.h"
#include "server/api/prompt.h"
#include "server/structured/formats.h"

namespace dsv4::server {

namespace {

constexpr size_t kMaxStops = 64, kMaxStopBytes = 16 << 10, kMaxStopIds = 1024;  // as of the routes
constexpr double kMaxTimeout = 1e9;                                             // seconds

void CheckIds(const Api& api, const std::vector<TokenId>& ids, const std::string& field) {
  const auto bad = std::find_if(ids.begin(), ids.end(),
                                [&](TokenId id) { return id < 0 || id >= api.model.vocab_size; });
  if (bad == ids.end()) return;
  Refuse(field, field + "[" + std::to_string(bad - ids.begin()) + "] is " + std::to_string(*bad) +
                    "; expected a token id from 0 to " + std::to_string(api.model.vocab_size - 1));
}

void CheckNumber(const std::string& field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  Refuse(field, field + " is " + std::to_string(value) + "; expected a number from " + std::to_string(least) + " to " +
                    std::to_string(most));
}

void CheckStops(const Api& api, const Request& r) {
  size_t bytes = 0;
  for (const std::string& stop : r.stops) {
    if (stop.empty()) Refuse("stops", "stops has an empty string; leave it out");
    bytes += stop.size();
  }
  if (r.stops.size() > kMaxStops || bytes > kMaxStopBytes) {
    Refuse("stops", "stops has " + std::to_string(r.stops.size()) + " strings with " + std::to_string(bytes) +
                        " bytes; at most " + std::to_string(kMaxStops) + " with " + std::to_string(kMaxStopBytes));
  }
  CheckIds(api, r.stop_ids, "stop_ids");
  if (r.stop_ids.size() > kMaxStopIds) {
    Refuse("stop_ids",
           "stop_ids has " + std::to_string(r.stop_ids.size()) + " ids; at most " + std::to_string(kMaxStopIds));
  }
}

void CheckRequest(const Api& api, const Request& r) {
  CheckIds(api, r.prompt, "prompt");
  CheckStops(api, r);
  CheckNumber("max_tokens", r.max_tokens, -1, int64_t{1} << 40);
  CheckNumber("min_tokens", r.min_tokens, 0, int64_t{1} << 40);
  CheckNumber("thinking_budget", r.thinking_budget, -1, int64_t{1} << 40);
  CheckNumber("prompt_logprobs", r.prompt_logprobs, -1, api.model.vocab_size);
  const Status sampling = ValidateSampling(r.sampling, api.model.vocab_size);
  if (!sampling.ok()) throw ApiError(400, sampling.message(), "sampling");
  if (!(r.timeout_s >= 0 && r.timeout_s <= kMaxTimeout))
    Refuse("timeout_s", "timeout_s must be from 0 (none) to " + std::to_string(static_cast<int64_t>(kMaxTimeout)));
  if (!r.chat && (r.thinking || !r.tools.empty()))
    Refuse("chat", "thinking and tools are parts of a chat: set chat, or leave them out");
  CheckNumber("first_output", r.first_output, 0, int64_t{1} << 40);
  if (r.first_output > 0 && (!r.json_schema.empty() || !r.regex.empty() || !r.tools.empty() || r.thinking_budget >= 0))
    throw ApiError(501, "first_output is not supported together with json_schema, regex, tools or thinking_budget");
  if (!r.json_schema.empty() && !r.regex.empty())
    Refuse("regex", "regex and json_schema both set the form of the output; send only one of them");
}

OutputForm FormOf(const Api& api, const Request& r) {
  const char* field = !r.json_schema.empty() ? "json_schema" : !r.regex.empty() ? "regex" : "";
  if (*field == 0) return {};
  if (api.grammars == nullptr) {
    throw ApiError(501, std::string(field) +
                            " needs structured output, which this build does not have: run "
                            "scripts/setup to install XGrammar, and build again");
  }
  if (!r.regex.empty()) return {.format = {{"type", "regex"}, {"pattern", r.regex}}, .shown = {}, .param = field};
  const JsonDocument schema = ParseJson(r.json_schema);
  if (!schema.root().is_object() && !schema.root().is_boolean())
    Refuse(field, "json_schema must be a JSON schema: an object");
  return {.format = JsonFormat(schema.root()), .shown = {}, .param = field};
}

// In OpenAI's form.
Json ToolsOf(const Request& r) {
  Json tools = Json::array();
  for (const std::string& text : r.tools) {
    const JsonDocument function = ParseJson(text);
    const Json& root = function.root();
    const auto name = root.is_object() ? root.find("name") : root.end();
    if (!root.is_object() || name == root.end() || !name->is_string()) {
      Refuse("tools",
             "tools[" + std::to_string(tools.size()) + "] must be the JSON of a function: an object with a name");
    }
    tools.push_back({{"type", "function"}, {"function", root}});
  }
  return tools;
}

GenerationParams ParamsOf(Request& r) {
  GenerationParams params{.sampling = std::move(r.sampling),
                          .min_tokens = r.min_tokens,
                          .ignore_eos = r.ignore_eos,
                          .speculate = r.speculate,
                          .stop_ids = std::move(r.stop_ids),
                          .stops = std::move(r.stops),
                          .include_stop = r.include_stop,
                          .skip_special = r.skip_special};
  params.prompt_logprobs = r.prompt_logprobs;
  params.progress = r.progress;
  params.chat = r.chat;
  params.thinking = r.thinking;
  params.calls_allowed = r.chat;
  params.parallel_calls = r.parallel_calls;
  params.thinking_budget = r.thinking_budget;
  return params;
}

void SetDeadline(double seconds, Job* job) {
  if (seconds <= 0) return;
  job->deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

ServiceJob MakeJob(const Api& api, Request request) {
  CheckRequest(api, request);
  GenerationParams params = ParamsOf(request);
  ServiceJob made{.job = std::make_shared<Job>(),
                  .plan = PlanForm(api, FormOf(api, request), ToolsOf(request), &params)};
  made.job->tenant = request.tenant;
  SetDeadline(request.timeout_s, made.job.get());
  SequenceSpec spec{.prompt = nullptr, .params = std::make_shared<GenerationParams>(std::move(params))};
  if (!request.text.text.empty()) spec.text = std::make_shared<const RenderedPrompt>(std::move(request.text));
  if (request.prompt.empty() && spec.text != nullptr)
    request.prompt = api.scheduler.EncodePrompt(request.tenant, *spec.text);
  const auto wanted = request.max_tokens < 0 ? std::nullopt : std::optional(request.max_tokens);
  spec.max_tokens = LimitTokens(api, request.prompt.size(), wanted, ErrorForm::kOpenAi, "prompt");
  CheckNumber("first_output", request.first_output, 0, static_cast<int64_t>(request.prompt.size()) - 1);
  spec.drawn = static_cast<size_t>(request.first_output);
  spec.prompt = std::make_shared<const std::vector<TokenId>>(std::move(request.prompt));
  made.job->sequences.push_back(std::move(spec));
  return made;
}

namespace {

ServiceJob ReadChat(const Api& api, const Fields& fields, const std::string& tenant) {
  GenerationParams params;
  ReadSampling(api, fields, &params);
  params.chat = true;
  const auto top = fields.Integer("top_logprobs");
  if (fields.Bool("logprobs").value_or(false))
    params.sampling.top_logprobs = static_cast<int>(std::min(top.value_or(0), api.model.vocab_size));
  const auto max_tokens = ReadMaxTokens(fields, {"max_tokens", "max_completion_tokens", "n_predict", "max_new_tokens"});
  const OutputForm form = ReadResponseFormat(fields);
  std::vector<std::string> custom_tools;
  const ChatInput input = ReadChatInput(api, fields, form, &params, &custom_tools);
  ServiceJob made{.job = std::make_shared<Job>(), .plan = PlanForm(api, form, input.tools, &params)};
  const ChatPrompt prompt = MakeChatPrompt(api, tenant, input);
  params.thinking = prompt.starts_in_reasoning;
  const int64_t most = LimitTokens(api, prompt.ids->size(), max_tokens, ErrorForm::kOpenAi, "messages");
  AddSequences(made.job.get(),
               {.prompt = prompt.ids,
                .params = std::make_shared<GenerationParams>(std::move(params)),
                .text = prompt.text,
                .max_tokens = most},
               1);
  return made;
}

ServiceJob ReadCompletion(const Api& api, const Fields& fields, const std::string& tenant) {
  GenerationParams params;
  ReadSampling(api, fields, &params);
  if (const auto logprobs = fields.Integer("logprobs")) {
    params.sampling.top_logprobs = static_cast<int>(std::min(*logprobs, api.model.vocab_size));
    if (fields.Bool("echo").value_or(false)) params.prompt_logprobs = params.sampling.top_logprobs;
  }
  ServiceJob made{.job = std::make_shared<Job>(),
                  .plan = PlanForm(api, ReadResponseFormat(fields), Json::array(), &params)};
  const auto max_tokens = ReadMaxTokens(fields, {"max_tokens", "n_predict", "max_new_tokens"}, 16);
  std::vector<CompletionPrompt> prompts = PromptReader(api, tenant, fields).Read(fields.Get("prompt"));
  if (prompts.size() != 1) {
    Refuse("prompt", "prompt has " + std::to_string(prompts.size()) + " prompts; submit one request for each");
  }
  const int64_t most = LimitTokens(api, prompts[0].ids.size(), max_tokens, ErrorForm::kOpenAi, "prompt");
  AddSequences(made.job.get(),
               {.prompt = std::make_shared<const std::vector<TokenId>>(std::move(prompts[0].ids)),
                .params = std::make_shared<GenerationParams>(std::move(params)),
                .text = prompts[0].text,
                .max_tokens = most},
               1);
  return made;
}

}  // namespace

ServiceJob ReadJob(const Api& api, std::string_view body, const std::string& tenant) {
  const JsonDocument document = ParseJson(body);
  const Json& root = document.root();
  const bool chat = root.is_object() && root.contains("messages");
  const Fields fields(root, "", chat ? &kChatBody : &kCompletionsBody);
  const ReplyOptions reply = ReadReplyOptions(fields);
  if (reply.n != 1) Refuse("n", "n is " + std::to_string(reply.n) + "; submit one request for each choice");
  ServiceJob made = chat ? ReadChat(api, fields, tenant) : ReadCompletion(api, fields, tenant);
  made.job->tenant = tenant;
  // Progress costs nothing here, and a body requests it together with a stream.
  made.job->sequences[0].params->progress = fields.Bool("return_progress").value_or(false);
  return made;
}

}  // namespace dsv4::server
