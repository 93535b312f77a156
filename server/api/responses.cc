// POST /v1/responses: OpenAI's Responses form. Responses are stored if the operator allows it and the request does not
// refuse.
#include <algorithm>
#include <iterator>
#include <utility>

#include "server/api/body_fields.h"
#include "server/api/history.h"
#include "server/api/output_form.h"
#include "server/api/reply.h"
#include "server/api/response_store.h"
#include "server/api/responses_input.h"
#include "server/api/responses_tools.h"

namespace dsv4::server {

namespace {

// Returns the text of `object` with one more member, whose value is already JSON text.
std::string With(const Json& object, const std::string& name, const std::string& value) {
  std::string text = Dump(object);
  text.back() = ',';
  return text.append("\"").append(name).append("\":").append(value).append("}");
}

// Stores its output as text until the end: as JSON values it would take twenty times the memory.
class ResponsesReply : public Reply {
 public:
  // `asked`: fields of the request that the response repeats; a JSON object. `thinking`: the reply begins with
  // reasoning. `items`: the conversation so far if the response is stored; a JSON array.
  ResponsesReply(const Api& api, ExchangePtr exchange, bool stream, Json response, std::string asked,
                 NamespacedTools names, bool thinking = false, bool logprobs = false, std::string items = "")
      : Reply(api, std::move(exchange), ErrorForm::kOpenAi, stream, 1),
        response_(std::move(response)),
        asked_(std::move(asked)),
        names_(std::move(names)),
        logprobs_(logprobs),
        in_reasoning_(thinking),
        items_(std::move(items)) {}

 private:
  bool KeepsLogprobs() const override { return true; }  // its last events repeat all of them
  enum class Item : uint8_t { kNone, kReasoning, kMessage, kCall, kCustomCall };

  void Send(const char* type, Json data, const char* name = nullptr, const std::string& value = "") {
    if (stream_) Raw(EventText(type, std::move(data), name, value));
  }
  std::string EventText(const char* type, Json data, const char* name, const std::string& value) {
    Json event = {{"type", type}, {"sequence_number", sequence_++}};
    event.update(data);
    return NamedEventText(type, name == nullptr ? Dump(event) : With(event, name, value));
  }

  std::string Begin() override {
    std::string all;
    for (const char* type : {"response.created", "response.in_progress"})
      all += EventText(type, Json::object(), "response", ResponseText());
    return all;
  }

  std::string ResponseText() const {
    std::string output = "[" + output_;
    if (item_ != Item::kNone) output += (output_.empty() ? "" : ",") + Dump(open_);
    std::string text = With(response_, "output", output + "]");
    text.back() = ',';
    return text.append(asked_, 1);
  }

  Json OutputIndex() const { return {{"output_index", num_items_ - 1}}; }
  Json Place() const { return {{"item_id", open_["id"]}, {"output_index", num_items_ - 1}, {"content_index", 0}}; }

  void OpenItem(Item item, Json json) {
    CloseItem("completed");
    item_ = item;
    text_.clear();
    text_tokens_.clear();
    open_ = std::move(json);
    ++num_items_;
    Send("response.output_item.added", OutputIndex(), "item", Dump(open_));
    if (item != Item::kCall && item != Item::kCustomCall)
      Send("response.content_part.added", Place(), "part", Part("", "[]"));
  }

  std::string Part(const std::string& text, const std::string& logprobs) const {
    if (item_ == Item::kReasoning) return Dump({{"type", "reasoning_text"}, {"text", text}});
    return With({{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}}, "logprobs", logprobs);
  }

  void Text(Item item, const std::string& text) {
    if (item_ != item) {
      OpenItem(item, item == Item::kReasoning ? Json{{"id", NewId("rs_")},
                                                     {"type", "reasoning"},
                                                     {"summary", Json::array()},
                                                     {"content", Json::array()},
                                                     {"status", "in_progress"}}
                                              : Json{{"id", NewId("msg_")},
                                                     {"type", "message"},
                                                     {"status", "in_progress"},
                                                     {"role", "assistant"},
                                                     {"content", Json::array()}});
    }
    text_ += text;
    Json data = Place();
    data["delta"] = text;
    if (item == Item::kMessage) data["logprobs"] = TakeLogprobs();
    Send(item == Item::kReasoning ? "response.reasoning_text.delta" : "response.output_text.delta", std::move(data));
  }

  // Returns the log-probabilities of the tokens since the previous text, and adds these tokens to the whole text's.
  Json TakeLogprobs() {
    std::vector<OutputToken> tokens = std::exchange(untold_, {});
    Json entries = stream_ ? LogprobsToJson(api_.tokenizer, tokens) : Json::array();
    std::move(tokens.begin(), tokens.end(), std::back_inserter(text_tokens_));
    return entries;
  }

  // Collects the tokens after the reasoning.
  void NoteTokens(std::vector<OutputToken>& tokens) {
    for (OutputToken& token : tokens) {
      if (!in_reasoning_) untold_.push_back(std::move(token));
      in_reasoning_ = in_reasoning_ && token.id != api_.tokenizer.FindToken("</think>");
    }
  }

  void CloseItem(const char* status) {
    if (item_ == Item::kNone) return;
    open_["status"] = status;
    std::string item;
    if (item_ == Item::kCustomCall) {
      open_["input"] = CustomInput(text_);
      Json place = OutputIndex();
      place["item_id"] = open_["id"];
      Json delta = place, done = place;
      delta["delta"] = done["input"] = open_["input"];
      Send("response.custom_tool_call_input.delta", std::move(delta));
      Send("response.custom_tool_call_input.done", std::move(done));
      item = Dump(open_);
    } else if (item_ == Item::kCall) {
      open_["arguments"] = text_;
      Send("response.function_call_arguments.done",
           {{"item_id", open_["id"]}, {"output_index", num_items_ - 1}, {"name", open_["name"]}, {"arguments", text_}});
      item = Dump(open_);
    } else {
      item = CloseText();
    }
    Send("response.output_item.done", OutputIndex(), "item", item);
    output_ += (output_.empty() ? "" : ",") + item;
    item_ = Item::kNone;
  }

  // Returns the closed item.
  std::string CloseText() {
    Json done = Place();
    done["text"] = text_;
    std::string logprobs = "[]";
    if (item_ == Item::kMessage) {
      (void)TakeLogprobs();
      logprobs = Dump(LogprobsToJson(api_.tokenizer, std::exchange(text_tokens_, {})));
      Send("response.output_text.done", std::move(done), "logprobs", logprobs);
    } else {
      Send("response.reasoning_text.done", std::move(done));
    }
    const std::string part = Part(text_, logprobs);
    Send("response.content_part.done", Place(), "part", part);
    open_.erase("content");
    return With(open_, "content", "[" + part + "]");
  }

  void Take(StepOutput& output) override {
    counts_ = output.counts;
    finish_ = output.finish;
    if (logprobs_) NoteTokens(output.tokens);
    for (const OutputDelta& d : output.deltas) {
      if (d.kind == OutputDelta::Kind::kToolCallBegin || d.kind == OutputDelta::Kind::kToolCallEnd) untold_.clear();
      switch (d.kind) {
        case OutputDelta::Kind::kReasoning:
          Text(Item::kReasoning, d.text);
          break;
        case OutputDelta::Kind::kContent:
          Text(Item::kMessage, d.text);
          break;
        case OutputDelta::Kind::kToolCallBegin: {
          const auto it = names_.find(d.text);
          const bool custom = it != names_.end() && it->second.custom;
          Json call = {{"id", NewId(custom ? "ctc_" : "fc_")},
                       {"type", custom ? "custom_tool_call" : "function_call"},
                       {"status", "in_progress"},
                       {"call_id", NewId("call_")},
                       {"name", d.text},
                       {custom ? "input" : "arguments", ""}};
          if (it != names_.end() && !it->second.space.empty()) {
            call["name"] = it->second.name;
            call["namespace"] = it->second.space;
          }
          OpenItem(custom ? Item::kCustomCall : Item::kCall, std::move(call));
          break;
        }
        case OutputDelta::Kind::kToolCallArguments:
          text_ += d.text;
          if (item_ == Item::kCustomCall) break;  // the text is inside the arguments, escaped
          Send("response.function_call_arguments.delta",
               {{"item_id", open_["id"]}, {"output_index", num_items_ - 1}, {"delta", d.text}});
          break;
        case OutputDelta::Kind::kToolCallEnd:
          CloseItem("completed");
          break;
      }
    }
  }

  void End() override {
    const bool cut = finish_ == FinishReason::kLength;
    const bool in_call = item_ == Item::kCall || item_ == Item::kCustomCall;
    CloseItem(cut || in_call ? "incomplete" : "completed");
    response_["status"] = cut ? "incomplete" : "completed";
    if (cut) response_["incomplete_details"] = {{"reason", "max_output_tokens"}};
    response_["completed_at"] = UnixTime();
    response_["usage"] = {{"input_tokens", counts_.prompt},
                          {"input_tokens_details", {{"cached_tokens", counts_.cached}}},
                          {"output_tokens", counts_.completion},
                          {"output_tokens_details", CompletionDetails(counts_)},
                          {"total_tokens", counts_.prompt + counts_.completion}};
    whole_ = ResponseText();
    Send(cut ? "response.incomplete" : "response.completed", Json::object(), "response", whole_);
    if (!items_.empty()) Keep();
  }

  void Keep() {
    const bool between = items_.size() > 2 && !output_.empty();  // "[]"
    items_.pop_back();
    items_ += (between ? "," : "") + output_ + "]";
    api_.responses->Put(
        response_["id"].get<std::string>(),
        {.tenant = TenantOf(api_, exchange_->request()), .response = whole_, .items = std::move(items_)});
  }

  std::string ErrorEvent(const ApiError& error) override {
    response_["status"] = "failed";
    response_["error"] = {{"code", error.code.empty() ? "server_error" : error.code}, {"message", error.what()}};
    return EventText("response.failed", Json::object(), "response", ResponseText());
  }

  Json response_;
  const std::string asked_;
  const NamespacedTools names_;
  const bool logprobs_;
  bool in_reasoning_;
  std::vector<OutputToken> untold_;       // tokens of the message since its latest text
  std::vector<OutputToken> text_tokens_;  // tokens of the open message
  std::string items_;
  int64_t sequence_ = 0;
  std::string output_;  // closed items, separated by commas
  Json open_;           // the open item
  int num_items_ = 0;
  Item item_ = Item::kNone;
  std::string text_;
  TokenCounts counts_;
  FinishReason finish_ = FinishReason::kNone;
};

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

// Either include: ["message.output_text.logprobs"] or top_logprobs requests log-probabilities.
bool ReadResponsesLogprobs(const Api& api, const Fields& fields, GenerationParams* params) {
  const auto top = fields.Integer("top_logprobs");
  const Json* include = fields.Array("include");
  const bool asked = include != nullptr && std::find(include->begin(), include->end(),
                                                     Json("message.output_text.logprobs")) != include->end();
  if (!asked && !top) return false;
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

std::string ItemsToKeep(const Json& before, const Fields& fields) {
  const JsonDocument input(KeptItems(fields));
  std::string items = Dump(before), more = Dump(input.root());
  if (items.size() <= 2) return more;
  if (more.size() <= 2) return items;
  items.back() = ',';
  return items + more.substr(1);
}

// Returns the ID of a request for /v1/responses/ID.
std::string WantedResponse(const ExchangePtr& exchange) { return PathParameter(exchange->request(), "/v1/responses"); }

ApiError NoSuchResponse(const std::string& id) { return {404, "there is no response '" + id + "'", "response_id"}; }

Reasoning ReadReasoning(const Api& api, const Fields& fields) {
  Reasoning reasoning = DefaultReasoning(api);
  const Json* wanted = fields.Object("reasoning");
  if (wanted == nullptr) return reasoning;
  if (const auto effort = Fields(*wanted, "reasoning").Text("effort")) {
    reasoning.thinking = *effort != "none";
    if (*effort != "none") reasoning.effort = MapEffort(api, *effort, "reasoning.effort");
  }
  return reasoning;
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

}  // namespace

void ServeStoredResponse(const Api& api, const ExchangePtr& exchange) {
  const std::string id = WantedResponse(exchange);
  const auto found = api.responses == nullptr ? nullptr : api.responses->Get(TenantOf(api, exchange->request()), id);
  if (found == nullptr) throw NoSuchResponse(id);
  exchange->Respond(200, "application/json", found->response);
}

void ServeDeleteResponse(const Api& api, const ExchangePtr& exchange) {
  const std::string id = WantedResponse(exchange);
  if (api.responses == nullptr) throw NoSuchResponse(id);
  const Status removed = api.responses->Remove(TenantOf(api, exchange->request()), id);
  if (removed.code() == StatusCode::kNotFound) throw NoSuchResponse(id);
  if (!removed.ok()) throw ApiError(500, "response " + id + " is not deleted: " + removed.message());
  exchange->Respond(200, "application/json", Dump({{"id", id}, {"object", "response"}, {"deleted", true}}));
}

void ServeResponses(const Api& api, const ExchangePtr& exchange) {
  const JsonDocument document = ParseJson(exchange->request().body);
  const Json& body = document.root();
  const Fields fields(body, "", &kResponsesBody);
  CheckModel(api, fields);
  const std::string tenant = TenantOf(api, exchange->request());
  const JsonDocument before = ReadPrevious(api, fields, tenant);
  const bool store = fields.Bool("store").value_or(true) && api.responses != nullptr;
  fields.RefuseUnlessEmpty("background", "this server only answers while the client waits");
  fields.RefuseUnlessEmpty("conversation", "this server stores no conversations; send the whole input");
  fields.RefuseUnlessEmpty("prompt", "this server has no prompt templates");
  GenerationParams params;
  ReadSampling(api, fields, &params);
  params.chat = true;

  ChatInput input;
  input.reasoning = ReadReasoning(api, fields);
  input.messages = ReadResponsesInput(fields, &before.root());
  NamespacedTools names;
  ReadResponsesTools(fields, before.root(), &input, &names);
  ReadResponsesToolChoice(fields, input, &params);
  const bool logprobs = ReadResponsesLogprobs(api, fields, &params);
  const OutputForm form = ReadTextFormat(fields);
  input.schema = form.shown;
  FinishHistory({.continues = std::nullopt,
                 .whole_reply = !form.format.is_null() || !params.required_calls.empty(),
                 .param = "input",
                 .missing_results = "the last item of input is a call whose output is missing: add the output of each "
                                    "call"},
                &input);
  GrammarPlan plan = PlanForm(api, form, input.tools, &params);
  const ChatPrompt prompt = MakeChatPrompt(api, tenant, input);
  params.thinking = prompt.starts_in_reasoning;

  Json response = NewResponse(api, params, store);
  std::string asked = AskedText(fields);
  const bool stream = fields.Bool("stream").value_or(false);
  int64_t most = 0;
  try {
    most = LimitTokens(api, prompt.ids->size(), fields.Integer("max_output_tokens"), ErrorForm::kOpenAi, "input");
  } catch (const ApiError& error) {
    if (!stream || error.code.empty()) throw;
    // Agents look for a failed response, not for an HTTP status.
    return std::make_shared<ResponsesReply>(api, exchange, stream, std::move(response), std::move(asked),
                                            std::move(names))
        ->FailAtOnce(error);
  }
  const auto job = std::make_shared<Job>();
  const bool thinking = params.thinking;
  job->sequences.push_back({.prompt = prompt.ids,
                            .params = std::make_shared<GenerationParams>(std::move(params)),
                            .text = prompt.text,
                            .max_tokens = most});
  const auto reply = std::make_shared<ResponsesReply>(api, exchange, stream, std::move(response), std::move(asked),
                                                      std::move(names), thinking, logprobs,
                                                      store ? ItemsToKeep(before.root(), fields) : "");
  RunWithGrammar(api, exchange, ErrorForm::kOpenAi, std::move(plan), job, [reply, job] { reply->Run(job); });
}

}  // namespace dsv4::server
