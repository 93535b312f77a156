// POST /v1/responses: OpenAI's Responses form. Responses are kept where the operator wants that, unless the request
// says otherwise.
#include <algorithm>
#include <array>
#include <utility>

#include "body_fields.h"
#include "reply.h"
#include "response_store.h"
#include "responses_input.h"
#include "responses_tools.h"
#include "structured/output_form.h"

namespace dsv4::server {

namespace {

class ResponsesReply : public Reply {
 public:
  // `thinking`: the reply begins with reasoning. `items`: of the conversation so far, where the response is kept; JSON,
  // an array.
  ResponsesReply(const Api& api, ExchangePtr exchange, bool stream, Json response, NamespacedTools names,
                 bool thinking = false, bool logprobs = false, std::string items = "")
      : Reply(api, std::move(exchange), ErrorForm::kOpenAi, stream, 1),
        response_(std::move(response)),
        names_(std::move(names)),
        logprobs_(logprobs),
        in_reasoning_(thinking),
        items_(std::move(items)) {}

 private:
  enum class Item : uint8_t { kNone, kReasoning, kMessage, kCall, kCustomCall };

  void Send(const char* type, Json data) {
    if (!stream_) return;
    Json event = {{"type", type}, {"sequence_number", sequence_++}};
    event.update(data);
    NamedEvent(type, event);
  }

  std::string Begin() override {
    std::string all;
    for (const char* type : {"response.created", "response.in_progress"}) {
      const Json event = {{"type", type}, {"sequence_number", sequence_++}, {"response", response_}};
      all += std::string("event: ") + type + "\ndata: " + Dump(event) + "\n\n";
    }
    return all;
  }

  int OutputIndex() const { return static_cast<int>(output_.size()) - 1; }
  Json Place() const {
    return {{"item_id", output_.back()["id"]}, {"output_index", OutputIndex()}, {"content_index", 0}};
  }

  void OpenItem(Item item, Json json) {
    CloseItem("completed");
    item_ = item;
    text_.clear();
    text_logprobs_ = Json::array();
    output_.push_back(std::move(json));
    Send("response.output_item.added", {{"output_index", OutputIndex()}, {"item", output_.back()}});
    if (item == Item::kCall || item == Item::kCustomCall) return;
    Json place = Place();
    place["part"] = Part("");
    Send("response.content_part.added", std::move(place));
  }

  Json Part(const std::string& text) const {
    if (item_ == Item::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
    return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", text_logprobs_}};
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

  // Of the tokens since the text before this one; they are those of the text as a whole, too.
  Json TakeLogprobs() {
    Json entries = LogprobsToJson(api_.tokenizer, std::exchange(untold_, {}));
    for (const Json& entry : entries) text_logprobs_.push_back(entry);
    return entries;
  }

  // What comes behind the reasoning.
  void NoteTokens(std::vector<OutputToken>& tokens) {
    for (OutputToken& token : tokens) {
      if (!in_reasoning_) untold_.push_back(std::move(token));
      in_reasoning_ = in_reasoning_ && token.id != api_.tokenizer.FindToken("</think>");
    }
  }

  void CloseItem(const char* status) {
    if (item_ == Item::kNone) return;
    Json& item = output_.back();
    item["status"] = status;
    if (item_ == Item::kCustomCall) {
      item["input"] = CustomInput(text_);
      const Json place = {{"item_id", item["id"]}, {"output_index", OutputIndex()}};
      Json delta = place, done = place;
      delta["delta"] = done["input"] = item["input"];
      Send("response.custom_tool_call_input.delta", std::move(delta));
      Send("response.custom_tool_call_input.done", std::move(done));
    } else if (item_ == Item::kCall) {
      item["arguments"] = text_;
      Send("response.function_call_arguments.done",
           {{"item_id", item["id"]}, {"output_index", OutputIndex()}, {"name", item["name"]}, {"arguments", text_}});
    } else {
      Json done = Place();
      done["text"] = text_;
      if (item_ == Item::kMessage) {
        TakeLogprobs();
        done["logprobs"] = text_logprobs_;
      }
      Send(item_ == Item::kReasoning ? "response.reasoning_text.done" : "response.output_text.done", std::move(done));
      Json part = Place();
      part["part"] = Part(text_);
      Send("response.content_part.done", std::move(part));
      item["content"] = Json::array({Part(text_)});
    }
    Send("response.output_item.done", {{"output_index", OutputIndex()}, {"item", item}});
    item_ = Item::kNone;
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
          if (item_ == Item::kCustomCall) break;  // its input is in there, escaped
          Send("response.function_call_arguments.delta",
               {{"item_id", output_.back()["id"]}, {"output_index", OutputIndex()}, {"delta", d.text}});
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
    response_["output"] = output_;
    response_["usage"] = {{"input_tokens", counts_.prompt},
                          {"input_tokens_details", {{"cached_tokens", counts_.cached}}},
                          {"output_tokens", counts_.completion},
                          {"output_tokens_details", {{"reasoning_tokens", counts_.reasoning}}},
                          {"total_tokens", counts_.prompt + counts_.completion}};
    Send(cut ? "response.incomplete" : "response.completed", {{"response", response_}});
    if (!items_.empty()) Keep();
    whole_ = std::move(response_);
  }

  void Keep() {
    const std::string output = Dump(output_);
    const bool between = items_.size() > 2 && output.size() > 2;  // "[]"
    items_.pop_back();
    items_ += (between ? "," : "") + output.substr(1);
    api_.responses->Put(
        response_["id"].get<std::string>(),
        {.tenant = TenantOf(api_, exchange_->request()), .response = Dump(response_), .items = std::move(items_)});
  }

  std::string ErrorEvent(const ApiError& error) override {
    response_["status"] = "failed";
    response_["error"] = {{"code", error.code.empty() ? "server_error" : error.code}, {"message", error.what()}};
    response_["output"] = output_;
    const Json event = {{"type", "response.failed"}, {"sequence_number", sequence_++}, {"response", response_}};
    return "event: response.failed\ndata: " + Dump(event) + "\n\n";
  }

  Json response_;
  const NamespacedTools names_;
  const bool logprobs_;
  bool in_reasoning_;
  std::vector<OutputToken> untold_;  // of the message, since its latest text
  Json text_logprobs_ = Json::array();
  std::string items_;
  int64_t sequence_ = 0;
  Json output_ = Json::array();
  Item item_ = Item::kNone;
  std::string text_;
  TokenCounts counts_;
  FinishReason finish_ = FinishReason::kNone;
};

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
    if (type != "function" && type != "custom")
      Refuse("tool_choice", "tool_choice.type must be \"function\", \"custom\" or \"allowed_tools\"");
    name = in.Text("name").value_or("");
  } else if (*choice != "required") {
    Refuse("tool_choice", "tool_choice must be none, auto, required or {\"type\": \"function\", \"name\": ...}");
  }
  if (input.tools.empty()) Refuse("tool_choice", "tool_choice asks for a call, but tools is empty");
  for (const Json& tool : input.tools) {
    const auto tool_name = tool["function"]["name"].get<std::string>();
    if (name.empty() ? !IsDeferred(tool) : tool_name == name) params->required_calls.push_back(tool_name);
  }
  if (params->required_calls.empty())
    Refuse("tool_choice", "tool_choice names \"" + name + "\", which is not among tools");
}

// include: ["message.output_text.logprobs"], with top_logprobs; either asks for them.
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

// The items of the conversation that previous_response_id goes on from; an empty array: none.
Json ReadPrevious(const Api& api, const Fields& fields, const std::string& tenant) {
  const auto id = fields.Text("previous_response_id");
  if (!id) return Json::array();
  const auto previous = api.responses == nullptr ? nullptr : api.responses->Get(tenant, *id);
  if (previous == nullptr) {
    throw ApiError(400,
                   "there is no response '" + *id + "' here" +
                       (api.responses == nullptr ? ": this server keeps none (--store-responses)" : "") +
                       "; send the whole input",
                   "previous_response_id", "previous_response_not_found");
  }
  return Json::parse(previous->items);
}

std::string ItemsToKeep(const Json& before, const Fields& fields) {
  const JsonDocument input(KeptItems(fields));
  std::string items = Dump(before), more = Dump(input.root());
  if (items.size() <= 2) return more;
  if (more.size() <= 2) return items;
  items.back() = ',';
  return items + more.substr(1);
}

// Of a request for /v1/responses/ID.
std::string WantedResponse(const ExchangePtr& exchange) {
  constexpr std::string_view kPrefix = "/v1/responses/";
  return exchange->request().path.substr(kPrefix.size());
}

ApiError NoSuchResponse(const std::string& id) {
  return {404, "there is no response '" + id + "' here", "response_id"};
}

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

// The response as it begins: what was asked for, nothing generated.
Json NewResponse(const Api& api, const Fields& fields, const GenerationParams& params, bool store) {
  return {{"id", NewId("resp_")},
          {"object", "response"},
          {"created_at", UnixTime()},
          {"status", "in_progress"},
          {"background", false},
          {"error", nullptr},
          {"incomplete_details", nullptr},
          {"instructions", Echo(fields, "instructions", nullptr)},
          {"max_output_tokens", Echo(fields, "max_output_tokens", nullptr)},
          {"model", api.options.model_name},
          {"output", Json::array()},
          {"parallel_tool_calls", params.parallel_calls},
          {"previous_response_id", Echo(fields, "previous_response_id", nullptr)},
          {"reasoning", Echo(fields, "reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
          {"store", store},
          {"temperature", FloatToJson(params.sampling.temperature)},
          {"text", Echo(fields, "text", {{"format", {{"type", "text"}}}})},
          {"tool_choice", Echo(fields, "tool_choice", "auto")},
          {"tools", Echo(fields, "tools", Json::array())},
          {"top_p", FloatToJson(params.sampling.top_p)},
          {"truncation", "disabled"},
          {"usage", nullptr},
          {"metadata", Echo(fields, "metadata", Json::object())}};
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
  if (api.responses == nullptr || !api.responses->Remove(TenantOf(api, exchange->request()), id))
    throw NoSuchResponse(id);
  exchange->Respond(200, "application/json", Dump({{"id", id}, {"object", "response"}, {"deleted", true}}));
}

void ServeResponses(const Api& api, const ExchangePtr& exchange) {
  const JsonDocument document = ParseJson(exchange->request().body);
  const Json& body = document.root();
  const Fields fields(body, "", &kResponsesBody);
  CheckModel(api, fields);
  const std::string tenant = TenantOf(api, exchange->request());
  const JsonDocument before(ReadPrevious(api, fields, tenant));
  const bool store = fields.Bool("store").value_or(true) && api.responses != nullptr;
  fields.RefuseUnlessEmpty("background", "responses are made while the client waits");
  fields.RefuseUnlessEmpty("conversation", "this server keeps none; send the whole input");
  fields.RefuseUnlessEmpty("prompt", "this server keeps no prompt templates");
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
  GrammarPlan plan = PlanForm(api, form, input.tools, &params);
  const ChatPrompt prompt = MakeChatPrompt(api, tenant, input);
  params.thinking = prompt.starts_in_reasoning;

  Json response = NewResponse(api, fields, params, store);
  const bool stream = fields.Bool("stream").value_or(false);
  try {
    LimitTokens(api, prompt.ids->size(), fields.Integer("max_output_tokens"), ErrorForm::kOpenAi, "input", &params);
  } catch (const ApiError& error) {
    if (!stream || error.code.empty()) throw;
    // Agents look for a failed response, not for a status.
    return std::make_shared<ResponsesReply>(api, exchange, stream, std::move(response), std::move(names))
        ->FailAtOnce(error);
  }
  const auto job = std::make_shared<Job>();
  job->sequences.push_back({.prompt = prompt.ids, .params = params, .text = prompt.text});
  const auto reply = std::make_shared<ResponsesReply>(api, exchange, stream, std::move(response), std::move(names),
                                                      params.thinking, logprobs,
                                                      store ? ItemsToKeep(before.root(), fields) : "");
  RunWithGrammar(api, exchange, ErrorForm::kOpenAi, std::move(plan), job, [reply, job] { reply->Run(job); });
}

}  // namespace dsv4::server
