// POST /v1/responses: OpenAI's Responses form, stateless.
#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "reply.h"
#include "structured/output_form.h"

namespace dsv4::server {

namespace {

// Tools of a namespace (MCP servers) are offered to the model as NAMESPACE__NAME and named apart again in the calls.
struct ToolName {
  std::string space, name;
};
using NamespacedTools = std::map<std::string, ToolName>;

class ResponsesReply : public Reply {
 public:
  ResponsesReply(const Api& api, ExchangePtr exchange, bool stream, Json response, NamespacedTools names)
      : Reply(api, std::move(exchange), ErrorForm::kOpenAi, stream, 1),
        response_(std::move(response)),
        names_(std::move(names)) {}

 private:
  enum class Item : uint8_t { kNone, kReasoning, kMessage, kCall };

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
    output_.push_back(std::move(json));
    Send("response.output_item.added", {{"output_index", OutputIndex()}, {"item", output_.back()}});
    if (item == Item::kCall) return;
    Json place = Place();
    place["part"] = Part("");
    Send("response.content_part.added", std::move(place));
  }

  Json Part(const std::string& text) const {
    if (item_ == Item::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
    return {
        {"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
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
    if (item == Item::kMessage) data["logprobs"] = Json::array();
    Send(item == Item::kReasoning ? "response.reasoning_text.delta" : "response.output_text.delta",
         std::move(data));
  }

  void CloseItem(const char* status) {
    if (item_ == Item::kNone) return;
    Json& item = output_.back();
    item["status"] = status;
    if (item_ == Item::kCall) {
      item["arguments"] = text_;
      Send("response.function_call_arguments.done", {{"item_id", item["id"]},
                                                     {"output_index", OutputIndex()},
                                                     {"name", item["name"]},
                                                     {"arguments", text_}});
    } else {
      Json done = Place();
      done["text"] = text_;
      if (item_ == Item::kMessage) done["logprobs"] = Json::array();
      Send(item_ == Item::kReasoning ? "response.reasoning_text.done" : "response.output_text.done",
           std::move(done));
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
    for (const OutputDelta& d : output.deltas) {
      switch (d.kind) {
        case OutputDelta::Kind::kReasoning:
          Text(Item::kReasoning, d.text);
          break;
        case OutputDelta::Kind::kContent:
          Text(Item::kMessage, d.text);
          break;
        case OutputDelta::Kind::kToolCallBegin: {
          Json call = {{"id", NewId("fc_")},        {"type", "function_call"}, {"status", "in_progress"},
                       {"call_id", NewId("call_")}, {"name", d.text},          {"arguments", ""}};
          if (const auto it = names_.find(d.text); it != names_.end() && !it->second.space.empty()) {
            call["name"] = it->second.name;
            call["namespace"] = it->second.space;
          }
          OpenItem(Item::kCall, std::move(call));
          break;
        }
        case OutputDelta::Kind::kToolCallArguments:
          text_ += d.text;
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
    CloseItem(cut || item_ == Item::kCall ? "incomplete" : "completed");
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
    whole_ = std::move(response_);
  }

  std::string ErrorEvent(const ApiError& error) override {
    response_["status"] = "failed";
    response_["error"] = {{"code", "server_error"}, {"message", error.what()}};
    response_["output"] = output_;
    const Json event = {{"type", "response.failed"}, {"sequence_number", sequence_++}, {"response", response_}};
    return "event: response.failed\ndata: " + Dump(event) + "\n\n";
  }

  Json response_;
  const NamespacedTools names_;
  int64_t sequence_ = 0;
  Json output_ = Json::array();
  Item item_ = Item::kNone;
  std::string text_;
  TokenCounts counts_;
  FinishReason finish_ = FinishReason::kNone;
};

std::string JoinParts(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) Refuse(path, path + " must be a string or an array of parts");
  std::string all;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string part_path = path + "[" + std::to_string(i) + "]";
    const Fields part(content[i], part_path);
    const std::string type = part.Text("type").value_or("");
    if (type != "input_text" && type != "output_text" && type != "text" && type != "reasoning_text" &&
        type != "summary_text" && type != "refusal") {
      Refuse(part_path, part_path + " is of type \"" + type + "\"; this model reads text only");
    }
    if (i > 0) all += "\n\n";
    all += part.Text(type == "refusal" ? "refusal" : "text").value_or("");
  }
  return all;
}

// Items in the order that they were made: reasoning, text and calls of one reply stand apart and become one message.
class InputReader {
 public:
  void Add(const Json& json, const std::string& path) {
    const Fields item(json, path);
    const std::string type = item.Text("type").value_or(item.Has("role") ? "message" : "");
    if (type == "message") return AddMessage(item, path);
    if (type == "reasoning") return AddReasoning(item, path);
    if (type == "function_call" || type == "custom_tool_call") return AddCall(item, path);
    if (type == "function_call_output" || type == "custom_tool_call_output") {
      const Json* output = item.Get("output");
      CloseReply();
      messages.push_back({{"role", "tool"},
                          {"tool_call_id", item.Text("call_id").value_or("")},
                          {"content", output == nullptr ? "" : JoinParts(*output, path + ".output")}});
      return;
    }
    // Items of tools that this server does not run (web searches and the like) tell the model nothing.
    static constexpr std::array kSkipped = {
        "item_reference",        "web_search_call",       "file_search_call",
        "image_generation_call", "code_interpreter_call", "computer_call",
        "local_shell_call",      "mcp_list_tools",        "compaction"};
    if (std::find(kSkipped.begin(), kSkipped.end(), type) == kSkipped.end()) {
      Refuse(path + ".type", path + ".type is \"" + type + "\", which this server does not know");
    }
  }
  void CloseReply() {
    if (reply_.is_null()) return;
    messages.push_back(std::exchange(reply_, nullptr));
  }

  Json messages = Json::array();

 private:
  Json& OpenReply() {
    if (reply_.is_null()) reply_ = {{"role", "assistant"}, {"content", ""}};
    return reply_;
  }
  void AddMessage(const Fields& item, const std::string& path) {
    const std::string role = item.Text("role").value_or("");
    const Json* content = item.Get("content");
    const std::string text = content == nullptr ? "" : JoinParts(*content, path + ".content");
    if (role == "assistant") {
      Json& reply = OpenReply();
      // A second text behind calls belongs to another reply.
      if (reply.contains("tool_calls")) CloseReply();
      Json& open = OpenReply();
      open["content"] = open["content"].get<std::string>() + text;
      return;
    }
    if (role != "user" && role != "system" && role != "developer") {
      Refuse(path + ".role",
             path + ".role is \"" + role + "\"; expected user, assistant, system or developer");
    }
    CloseReply();
    messages.push_back({{"role", role == "developer" ? "system" : role}, {"content", text}});
  }
  void AddReasoning(const Fields& item, const std::string& path) {
    std::string text;
    if (const Json* content = item.Array("content")) text = JoinParts(*content, path + ".content");
    if (const Json* summary = item.Array("summary"); text.empty() && summary != nullptr) {
      text = JoinParts(*summary, path + ".summary");
    }
    if (!reply_.is_null() &&
        (reply_.contains("tool_calls") || !reply_["content"].get_ref<const std::string&>().empty())) {
      CloseReply();
    }
    Json& reply = OpenReply();
    reply["reasoning_content"] = reply.value("reasoning_content", std::string()) + text;
  }
  void AddCall(const Fields& item, const std::string& path) {
    auto name = item.Text("name");
    if (!name) Refuse(path + ".name", path + ".name is missing");
    if (const auto space = item.Text("namespace")) *name = *space + "__" + *name;
    std::string arguments = item.Text("arguments").value_or(item.Text("input").value_or("{}"));
    OpenReply()["tool_calls"].push_back({{"id", item.Text("call_id").value_or("")},
                                         {"type", "function"},
                                         {"function", {{"name", *name}, {"arguments", std::move(arguments)}}}});
  }

  Json reply_;
};

void AddTool(const Json& json, const std::string& path, const std::string& space, ChatInput* input,
             NamespacedTools* names) {
  const Fields tool(json, path);
  const std::string type = tool.Text("type").value_or("function");
  if (type == "namespace") {
    const Json* inner = tool.Array("tools");
    for (size_t i = 0; inner != nullptr && i < inner->size(); ++i) {
      AddTool((*inner)[i], path + ".tools[" + std::to_string(i) + "]", tool.Text("name").value_or(""), input,
              names);
    }
    return;
  }
  if (type != "function") return;  // run by OpenAI's servers
  const auto name = tool.Text("name");
  if (!name) Refuse(path + ".name", path + ".name is missing");
  const std::string full = space.empty() ? *name : space + "__" + *name;
  Json function = {{"name", full}};
  if (const auto description = tool.Text("description")) function["description"] = *description;
  if (const Json* parameters = tool.Object("parameters")) function["parameters"] = *parameters;
  if (const auto strict = tool.Bool("strict")) function["strict"] = *strict;
  input->tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  (*names)[full] = {space, *name};
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
    if (in.Text("type").value_or("") != "function")
      Refuse("tool_choice", "tool_choice.type must be \"function\"");
    name = in.Text("name").value_or("");
  } else if (*choice != "required") {
    Refuse("tool_choice",
           "tool_choice must be none, auto, required or {\"type\": \"function\", \"name\": ...}");
  }
  if (input.tools.empty()) Refuse("tool_choice", "tool_choice asks for a call, but tools is empty");
  for (const Json& tool : input.tools) {
    const auto tool_name = tool["function"]["name"].get<std::string>();
    if (name.empty() || tool_name == name) params->required_calls.push_back(tool_name);
  }
  if (params->required_calls.empty())
    Refuse("tool_choice", "tool_choice names \"" + name + "\", which is not among tools");
}

Json Echo(const Fields& fields, const char* name, Json otherwise) {
  const Json* value = fields.Get(name);
  return value == nullptr ? std::move(otherwise) : *value;
}

}  // namespace

void ServeResponses(const Api& api, const ExchangePtr& exchange) {
  const Json body = ParseJson(exchange->request().body);
  const Fields fields(body, "");
  CheckModel(api, fields);
  if (const auto previous = fields.Text("previous_response_id")) {
    throw ApiError(
        400, "there is no response '" + *previous + "' here: this server keeps none; send the whole input",
        "previous_response_id", "previous_response_not_found");
  }
  fields.RefuseUnlessEmpty("background", "responses are made while the client waits");
  fields.RefuseUnlessEmpty("conversation", "this server keeps none; send the whole input");
  fields.RefuseUnlessEmpty("prompt", "this server keeps no prompt templates");
  GenerationParams params;
  ReadSampling(api, fields, &params);
  params.chat = true;

  ChatInput input;
  input.reasoning = DefaultReasoning(api);
  if (const Json* reasoning = fields.Object("reasoning")) {
    const Fields in(*reasoning, "reasoning");
    if (const auto effort = in.Text("effort")) {
      input.reasoning.thinking = *effort != "none";
      if (*effort != "none") input.reasoning.effort = MapEffort(api, *effort, "reasoning.effort");
    }
  }
  InputReader reader;
  if (const auto instructions = fields.Text("instructions"); instructions && !instructions->empty()) {
    reader.messages.push_back({{"role", "system"}, {"content", *instructions}});
  }
  const Json* given = fields.Get("input");
  if (given == nullptr || (given->is_array() && given->empty())) {
    // Codex looks whether the route is there with an empty input.
    reader.messages.push_back({{"role", "user"}, {"content", ""}});
  } else if (given->is_string()) {
    reader.messages.push_back({{"role", "user"}, {"content", *given}});
  } else if (given->is_array()) {
    for (size_t i = 0; i < given->size(); ++i) reader.Add((*given)[i], "input[" + std::to_string(i) + "]");
    reader.CloseReply();
  } else {
    Refuse("input", "input must be a string or an array of items");
  }
  input.messages = std::move(reader.messages);
  NamespacedTools names;
  if (const Json* tools = fields.Array("tools")) {
    for (size_t i = 0; i < tools->size(); ++i)
      AddTool((*tools)[i], "tools[" + std::to_string(i) + "]", "", &input, &names);
  }
  ReadResponsesToolChoice(fields, input, &params);
  const OutputForm form = ReadTextFormat(fields);
  input.schema = form.shown;
  GrammarPlan plan = PlanForm(api, form, input.tools, &params);
  const ChatPrompt prompt = MakeChatPrompt(api, TenantOf(api, exchange->request()), input);
  params.thinking = prompt.starts_in_reasoning;
  LimitTokens(api, prompt.ids->size(), fields.Integer("max_output_tokens", 1), &params);

  Json response = {{"id", NewId("resp_")},
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
                   {"previous_response_id", nullptr},
                   {"reasoning", Echo(fields, "reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
                   {"store", false},
                   {"temperature", FloatToJson(params.sampling.temperature)},
                   {"text", Echo(fields, "text", {{"format", {{"type", "text"}}}})},
                   {"tool_choice", Echo(fields, "tool_choice", "auto")},
                   {"tools", Echo(fields, "tools", Json::array())},
                   {"top_p", FloatToJson(params.sampling.top_p)},
                   {"truncation", "disabled"},
                   {"usage", nullptr},
                   {"metadata", Echo(fields, "metadata", Json::object())}};
  const auto job = std::make_shared<Job>();
  job->sequences.push_back({.prompt = prompt.ids, .params = params, .text = prompt.text});
  const auto reply = std::make_shared<ResponsesReply>(api, exchange, fields.Bool("stream").value_or(false),
                                                      std::move(response), std::move(names));
  RunWithGrammar(api, exchange, ErrorForm::kOpenAi, std::move(plan), job, [reply, job] { reply->Run(job); });
}

}  // namespace dsv4::server
