// POST /v1/responses, /v1/responses/compact and /v1/responses/input_tokens: OpenAI's Responses form. Responses are
// stored if the operator allows it and the request does not refuse.
#include <algorithm>
#include <optional>
#include <utility>

#include "server/api/body_fields.h"
#include "server/api/history.h"
#include "server/api/output_form.h"
#include "server/api/reasoning.h"
#include "server/api/response_store.h"
#include "server/api/responses_input.h"
#include "server/api/responses_reply.h"
#include "server/api/responses_tools.h"

namespace dsv4::server {

namespace {

constexpr int64_t kMaxSummary = 8192;  // tokens of a compaction
constexpr const char* kCompactionOrder =
    "Summarize this conversation. It continues with your summary in place of everything before this message, except "
    "the "
    "user's messages. Write down what the user wants, what was done and found out, decisions and their reasons, names "
    "of files and values that will be needed, and what is left to do. Write only the summary.";

// Whether OpenAI's servers run a tool, such as web search. The type of a tool and of its choice may differ in their
// ends, as in "web_search_preview". No `type`: any tool.
bool HasHostedTool(const Fields& fields, const std::optional<std::string>& type) {
  const Json* list = fields.Array("tools");
  return list != nullptr && std::any_of(list->begin(), list->end(), [&](const Json& tool) {
           const Json given = tool.value("type", Json());
           const std::string name = given.is_string() ? given.get<std::string>() : "function";
           if (name == "function" || name == "custom" || name == "namespace") return false;
           return !type || (!type->empty() && (name.starts_with(*type) || type->starts_with(name)));
         });
}

void ReadResponsesToolChoice(const Fields& fields, const ChatInput& input, GenerationParams* params) {
  params->calls_allowed = !input.tools.empty();
  params->parallel_calls = fields.Bool("parallel_tool_calls").value_or(true);
  const Json* choice = fields.Get("tool_choice");
  if (choice == nullptr || *choice == "auto") return;
  if (*choice == "none") {
    params->calls_allowed = false;
    return;
  }
  std::string name;
  if (choice->is_object()) {
    const Fields in(*choice, "tool_choice");
    if (in.Text("type").value_or("") == "allowed_tools") {
      std::vector<std::string> names;
      for (const Json& tool : input.tools) names.push_back(tool["function"]["name"].get<std::string>());
      return ReadAllowedTools(in, names, params);
    }
    const std::string type = in.Text("type").value_or("");
    name = in.Text("name").value_or("");
    if (type != "function" && type != "custom") {
      if (HasHostedTool(fields, type)) return;  // the model answers from its own knowledge
      Refuse("tool_choice",
             "tool_choice.type must be \"function\", \"custom\", \"allowed_tools\" or the type of a tool in tools");
    }
  } else if (*choice != "required") {
    Refuse("tool_choice", "tool_choice must be none, auto, required or {\"type\": \"function\", \"name\": ...}");
  }
  for (const Json& tool : input.tools) {
    const auto tool_name = tool["function"]["name"].get<std::string>();
    if (name.empty() ? !IsDeferred(tool) : tool_name == name) params->required_calls.push_back(tool_name);
  }
  if (!params->required_calls.empty()) return;
  if (name.empty() ? input.tools.empty() && HasHostedTool(fields, std::nullopt) : HasHostedTool(fields, name)) return;
  if (input.tools.empty()) Refuse("tool_choice", "tool_choice requires a call, but tools is empty");
  Refuse("tool_choice", "tool_choice names \"" + name + "\", which is not among tools");
}

bool Includes(const Fields& fields, const char* what) {
  const Json* include = fields.Array("include");
  return include != nullptr && std::find(include->begin(), include->end(), Json(what)) != include->end();
}

// Returns whether reasoning: {summary} has a summary, under its newer or its older name.
bool WantsSummary(const Fields& fields) {
  const Json* reasoning = fields.Object("reasoning");
  if (reasoning == nullptr) return false;
  bool wanted = false;
  for (const char* name : {"summary", "generate_summary"}) {
    const auto summary = Fields(*reasoning, "reasoning").Text(name);
    if (!summary || summary->empty() || *summary == "none") continue;
    if (*summary != "auto" && *summary != "concise" && *summary != "detailed") {
      Refuse("reasoning." + std::string(name),
             "reasoning." + std::string(name) + " is \"" + *summary + "\"; expected auto, concise or detailed");
    }
    wanted = true;
  }
  return wanted;
}

// Either include: ["message.output_text.logprobs"] or top_logprobs requests log-probabilities.
bool ReadResponsesLogprobs(const Api& api, const Fields& fields, GenerationParams* params) {
  const auto top = fields.Integer("top_logprobs");
  if (!Includes(fields, "message.output_text.logprobs") && !top) return false;
  params->sampling.top_logprobs = static_cast<int>(std::min(top.value_or(0), api.model.vocab_size));
  return true;
}

Json Echo(const Fields& fields, const char* name, Json otherwise) {
  const Json* value = fields.Get(name);
  return value == nullptr ? std::move(otherwise) : *value;
}

// Returns the items of the conversation that previous_response_id continues; an empty array if it is not set.
JsonDocument ReadPrevious(const Api& api, const Fields& fields, const std::string& tenant) {
  const auto id = fields.Text("previous_response_id");
  if (!id) return JsonDocument(Json::array());
  const auto previous = api.responses == nullptr ? nullptr : api.responses->Get(tenant, *id);
  if (previous == nullptr) {
    throw ApiError(400,
                   "there is no response '" + *id + "'" +
                       (api.responses == nullptr ? ": this server stores none (--store-responses)" : "") +
                       "; send the whole input",
                   "previous_response_id", "previous_response_not_found");
  }
  try {
    return ParseJson(previous->items);
  } catch (const ApiError& error) {
    Refuse("previous_response_id", std::string("the conversation so far is too large: ") + error.what());
  }
}

// Returns the messages of the user, as a JSON array.
std::string RetainedItems(const Json& before, const Fields& fields, int* count = nullptr) {
  const JsonDocument input(KeptItems(fields));
  Json kept = Json::array();
  for (const Json* items : {&before, &input.root()}) {
    for (const Json& item : *items) {
      if (item.is_object() && item.value("type", Json("message")) == "message" && item.value("role", Json()) == "user")
        kept.push_back(ListedItem(item, NewId("msg_")));
    }
  }
  const JsonDocument document(std::move(kept));
  if (count != nullptr) *count = static_cast<int>(document.root().size());
  return Dump(document.root());
}

std::string ItemsToKeep(const Json& before, const Fields& fields, bool continued) {
  const JsonDocument input(KeptItems(fields, continued));
  std::string items = Dump(before), more = Dump(input.root());
  if (items.size() <= 2) return more;
  if (more.size() <= 2) return items;
  items.back() = ',';
  return items + more.substr(1);
}

// The response at its beginning, without output.
Json NewResponse(const Api& api, const GenerationParams& params, bool store) {
  return {{"id", NewId("resp_")},
          {"object", "response"},
          {"created_at", UnixTime()},
          {"status", "in_progress"},
          {"background", false},
          {"error", nullptr},
          {"incomplete_details", nullptr},
          {"model", api.options.model_name},
          {"parallel_tool_calls", params.parallel_calls},
          {"store", store},
          {"temperature", FloatToJson(params.sampling.temperature)},
          {"top_p", FloatToJson(params.sampling.top_p)},
          {"truncation", "disabled"},
          {"usage", nullptr}};
}

// The fields of the request that the response repeats.
std::string AskedText(const Fields& fields) {
  const JsonDocument asked(Json{{"instructions", Echo(fields, "instructions", nullptr)},
                                {"max_output_tokens", Echo(fields, "max_output_tokens", nullptr)},
                                {"previous_response_id", Echo(fields, "previous_response_id", nullptr)},
                                {"reasoning", Echo(fields, "reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
                                {"text", Echo(fields, "text", {{"format", {{"type", "text"}}}})},
                                {"tool_choice", Echo(fields, "tool_choice", "auto")},
                                {"tools", Echo(fields, "tools", Json::array())},
                                {"metadata", Echo(fields, "metadata", Json::object())}});
  return Dump(asked.root());
}

// A body without the fields about its reply.
struct ResponsesPrompt {
  ChatInput input;
  NamespacedTools names;
  OutputForm form;
};

// `compacts`: the model is to summarize the conversation. That prompt begins like the one that it would answer, so its
// cached prefix is used.
ResponsesPrompt ReadPrompt(const Api& api, const Fields& fields, const Json& before, bool compacts,
                           GenerationParams* params) {
  ResponsesPrompt prompt;
  ChatInput& input = prompt.input;
  input.reasoning = ReadReasoning(api, fields, params);
  input.drop_thinking = ReadDropThinking(fields);
  input.messages = ReadResponsesInput(fields, &before);
  ReadResponsesTools(fields, before, &input, &prompt.names);
  ReadResponsesToolChoice(fields, input, params);
  prompt.form = ReadTextFormat(fields);
  HistoryEnd end{.continues = std::nullopt,
                 .param = "input",
                 .missing_results =
                     "the last item of input is a call whose output is missing: add the output of each "
                     "call"};
  if (compacts) {
    input.messages.push_back({{"role", "user"}, {"content", kCompactionOrder}});
    input.reasoning = {};
    params->calls_allowed = false;
    params->required_calls.clear();
    prompt.form = {};
  }
  input.schema = prompt.form.shown;
  end.whole_reply = !prompt.form.format.is_null() || !params->required_calls.empty();
  FinishHistory(end, &input);
  return prompt;
}

// Starts the job that `options` describes. Errors of its length go into a stream: agents look for a failed response,
// not for an HTTP status.
void Answer(const Api& api, const ExchangePtr& exchange, const ResponsesPrompt& asked, GenerationParams params,
            std::optional<int64_t> max_tokens, Json response, ResponsesOptions options) {
  GrammarPlan plan = PlanForm(api, asked.form, asked.input.tools, &params);
  const ChatPrompt prompt = MakeChatPrompt(api, TenantOf(api, exchange->request()), asked.input);
  params.thinking = options.thinking = prompt.starts_in_reasoning;
  const bool stream = options.stream;
  const auto reply = MakeResponsesReply(api, exchange, std::move(response), std::move(options));
  const auto job = std::make_shared<Job>();
  try {
    const int64_t most = LimitTokens(api, prompt.ids->size(), max_tokens, ErrorForm::kOpenAi, "input");
    job->sequences.push_back({.prompt = prompt.ids,
                              .params = std::make_shared<GenerationParams>(std::move(params)),
                              .text = prompt.text,
                              .max_tokens = most});
  } catch (const ApiError& error) {
    if (!stream || error.code.empty()) throw;
    return reply->FailAtOnce(error);
  }
  RunWithGrammar(api, exchange, ErrorForm::kOpenAi, std::move(plan), job, [reply, job] { reply->Run(job); });
}

}  // namespace

void ServeResponses(const Api& api, const ExchangePtr& exchange) {
  const JsonDocument document = ParseJson(exchange->request().body);
  const Fields fields(document.root(), "", &kResponsesBody);
  CheckModel(api, fields);
  const JsonDocument before = ReadPrevious(api, fields, TenantOf(api, exchange->request()));
  const bool store = fields.Bool("store").value_or(true) && api.responses != nullptr;
  GenerationParams params;
  ReadSampling(api, fields, &params);
  params.chat = true;
  ResponsesOptions options{.stream = fields.Bool("stream").value_or(false),
                           .logprobs = ReadResponsesLogprobs(api, fields, &params),
                           .hides_reasoning = ReadIncludeReasoning(fields) == ReasoningPlace::kNowhere,
                           .summary = WantsSummary(fields),
                           .sealed = Includes(fields, "reasoning.encrypted_content"),
                           .compacts = EndsInTrigger(fields),
                           .asked = AskedText(fields)};
  ResponsesPrompt prompt = ReadPrompt(api, fields, before.root(), options.compacts, &params);
  options.names = std::move(prompt.names);
  auto max_tokens = fields.Integer("max_output_tokens");
  if (options.compacts) {
    options.logprobs = false;
    params.sampling.top_logprobs = -1;
    max_tokens = std::min(max_tokens.value_or(kMaxSummary), kMaxSummary);
  }
  if (store) {
    options.items = options.compacts ? RetainedItems(before.root(), fields)
                                     : ItemsToKeep(before.root(), fields, prompt.input.continue_last);
  }
  Json response = NewResponse(api, params, store);
  Answer(api, exchange, prompt, std::move(params), max_tokens, std::move(response), std::move(options));
}

// The output: the messages of the user, and the rest of the conversation as one item. Clients send both in the place of
// the conversation.
void ServeCompactResponse(const Api& api, const ExchangePtr& exchange) {
  const JsonDocument document = ParseJson(exchange->request().body);
  const Fields fields(document.root(), "", &kResponsesPromptBody);
  CheckModel(api, fields);
  const JsonDocument before = ReadPrevious(api, fields, TenantOf(api, exchange->request()));
  GenerationParams params;
  params.sampling = api.default_sampling;
  params.chat = true;
  const ResponsesPrompt prompt = ReadPrompt(api, fields, before.root(), /*compacts=*/true, &params);
  ResponsesOptions options{.compacts = true};
  const std::string retained = RetainedItems(before.root(), fields, &options.num_retained);
  options.retained = retained.substr(1, retained.size() - 2);
  Json response = {{"id", NewId("resp_")}, {"object", "response.compaction"}, {"created_at", UnixTime()}};
  Answer(api, exchange, prompt, std::move(params), kMaxSummary, std::move(response), std::move(options));
}

void ServeResponseTokens(const Api& api, const ExchangePtr& exchange) {
  const JsonDocument document = ParseJson(exchange->request().body);
  const Fields fields(document.root(), "", &kResponsesPromptBody);
  CheckModel(api, fields);
  const std::string tenant = TenantOf(api, exchange->request());
  const JsonDocument before = ReadPrevious(api, fields, tenant);
  GenerationParams params;
  const ResponsesPrompt prompt = ReadPrompt(api, fields, before.root(), EndsInTrigger(fields), &params);
  const size_t tokens = MakeChatPrompt(api, tenant, prompt.input).ids->size();
  exchange->Respond(200, "application/json", Dump({{"object", "response.input_tokens"}, {"input_tokens", tokens}}));
}

}  // namespace dsv4::server
