// POST /v1/chat/completions
#include <algorithm>
#include <array>
#include <utility>

#include "content.h"
#include "reply.h"
#include "structured/output_form.h"

namespace dsv4::server {

namespace {

struct ChatOptions : ReplyOptions {
  bool logprobs = false;
  std::vector<std::string> custom_tools;  // names
};

class ChatReply : public Reply {
 public:
  ChatReply(const Api& api, ExchangePtr exchange, const ChatOptions& options)
      : Reply(api, std::move(exchange), ErrorForm::kOpenAi, options.stream, static_cast<size_t>(options.n)),
        options_(options),
        choices_(static_cast<size_t>(options.n)),
        id_(NewId("chatcmpl-")),
        created_(UnixTime()),
        chunk_head_(Dump(Head("chat.completion.chunk"))) {}

 private:
  struct Choice {
    std::string reasoning, content;
    Json calls = Json::array();
    Json logprobs = Json::array();
    Json stop_reason;
    FinishReason finish = FinishReason::kNone;
    bool role_sent = false;
    bool in_custom = false;  // of a stream: the call that is being written takes a text
    std::string custom_arguments;
  };

  bool IsCustom(const std::string& name) const {
    return std::find(options_.custom_tools.begin(), options_.custom_tools.end(), name) != options_.custom_tools.end();
  }
  Json ToCustom(const Json& call) const {
    const Json& function = call["function"];
    return {{"id", call["id"]},
            {"type", "custom"},
            {"custom", {{"name", function["name"]}, {"input", CustomInput(function["arguments"].get<std::string>())}}}};
  }

  Json Head(const char* object) const {
    return {{"id", id_}, {"object", object}, {"created", created_}, {"model", api_.options.model_name},
            {"system_fingerprint", api_.fingerprint}};
  }

  Json LogprobEntry(TokenId id, float logprob) const {
    Json bytes = Json::array();
    if (api_.tokenizer.IsValid(id)) {
      for (const char c : api_.tokenizer.TokenBytes(id))
        bytes.push_back(static_cast<int>(static_cast<unsigned char>(c)));
    }
    return {{"token", TokenText(api_.tokenizer, id)},
            {"logprob", FloatToJson(logprob)},
            {"bytes", std::move(bytes)}};
  }
  Json Logprobs(const std::vector<OutputToken>& tokens) const {
    Json list = Json::array();
    for (const OutputToken& token : tokens) {
      Json entry = LogprobEntry(token.id, token.logprob);
      entry["top_logprobs"] = Json::array();
      for (const TokenLogprob& other : token.top)
        entry["top_logprobs"].push_back(LogprobEntry(other.id, other.logprob));
      list.push_back(std::move(entry));
    }
    return list;
  }

  void SetReasoning(Json* object, const std::string& text) const {
    const std::string& field = api_.options.reasoning_field;
    if (field != "reasoning") (*object)["reasoning_content"] = text;
    if (field != "reasoning_content") (*object)["reasoning"] = text;
  }

  void Take(StepOutput& output) override {
    usage_.Set(output.index, output.counts);
    Choice& choice = choices_[static_cast<size_t>(output.index)];
    choice.finish = output.finish;
    if (!output.matched_stop.empty()) choice.stop_reason = output.matched_stop;
    if (output.matched_id) choice.stop_reason = *output.matched_id;
    if (stream_) return Stream(output, choice);
    for (OutputDelta& delta : output.deltas) {
      switch (delta.kind) {
        case OutputDelta::Kind::kReasoning:
          choice.reasoning += delta.text;
          break;
        case OutputDelta::Kind::kContent:
          choice.content += delta.text;
          break;
        case OutputDelta::Kind::kToolCallBegin:
          choice.calls.push_back({{"id", NewId("call_")},
                                  {"type", "function"},
                                  {"function", {{"name", delta.text}, {"arguments", ""}}}});
          break;
        case OutputDelta::Kind::kToolCallArguments:
          choice.calls.back()["function"]["arguments"].get_ref<std::string&>() += delta.text;
          break;
        case OutputDelta::Kind::kToolCallEnd:
          break;
      }
    }
    if (options_.logprobs) {
      for (Json& entry : Logprobs(output.tokens)) choice.logprobs.push_back(std::move(entry));
    }
  }

  // One chunk per step and choice: the counts of a client that counts chunks are true.
  void Stream(StepOutput& output, Choice& choice) {
    Json delta = Json::object();
    std::string reasoning, content;
    Json calls = Json::array();
    for (OutputDelta& d : output.deltas) {
      switch (d.kind) {
        case OutputDelta::Kind::kReasoning:
          reasoning += d.text;
          break;
        case OutputDelta::Kind::kContent:
          content += d.text;
          break;
        case OutputDelta::Kind::kToolCallBegin:
          choice.in_custom = IsCustom(d.text);
          choice.custom_arguments.clear();
          calls.push_back(
              {{"index", d.index}, {"id", NewId("call_")}, {"type", choice.in_custom ? "custom" : "function"}});
          calls.back()[choice.in_custom ? "custom" : "function"] = {{"name", d.text},
                                                                    {choice.in_custom ? "input" : "arguments", ""}};
          break;
        case OutputDelta::Kind::kToolCallArguments:
          if (choice.in_custom) {  // the input is in there, escaped
            choice.custom_arguments += d.text;
            break;
          }
          if (calls.empty() || calls.back()["index"] != d.index) {
            calls.push_back({{"index", d.index}, {"function", {{"arguments", ""}}}});
          }
          calls.back()["function"]["arguments"].get_ref<std::string&>() += d.text;
          break;
        case OutputDelta::Kind::kToolCallEnd:
          if (!choice.in_custom) break;
          if (calls.empty() || calls.back()["index"] != d.index)
            calls.push_back({{"index", d.index}, {"custom", {{"input", ""}}}});
          calls.back()["custom"]["input"] = CustomInput(choice.custom_arguments);
          break;
      }
    }
    const bool ended = output.finish != FinishReason::kNone;
    const bool tells = !reasoning.empty() || !content.empty() || !calls.empty();
    const bool wanted = tells || (!output.tokens.empty() && (options_.logprobs || options_.continuous_usage));
    if (wanted || (ended && !choice.role_sent)) {
      if (!choice.role_sent) {
        delta["role"] = "assistant";
        choice.role_sent = true;
      }
      if (!reasoning.empty()) SetReasoning(&delta, reasoning);
      if (!content.empty() || (reasoning.empty() && calls.empty())) delta["content"] = content;
      if (!calls.empty()) delta["tool_calls"] = std::move(calls);
      Chunk(output.index, std::move(delta), options_.logprobs ? &output.tokens : nullptr, nullptr, {});
    }
    if (ended) {
      Chunk(output.index, Json::object(), nullptr, FinishReasonName(output.finish), choice.stop_reason);
    }
  }

  void Chunk(int index, Json delta, const std::vector<OutputToken>* tokens, const char* finish,
             const Json& stop_reason) {
    Json choice = {{"index", index}, {"delta", std::move(delta)}, {"logprobs", nullptr}};
    if (tokens != nullptr) choice["logprobs"] = {{"content", Logprobs(*tokens)}, {"refusal", nullptr}};
    choice["finish_reason"] = finish == nullptr ? Json(nullptr) : Json(finish);
    if (!stop_reason.is_null()) choice["stop_reason"] = stop_reason;
    Json chunk = {{"choices", Json::array({std::move(choice)})}};
    if (options_.continuous_usage) {
      chunk["usage"] = UsageToJson(usage_.Total(options_.n));
    } else if (options_.include_usage) {
      chunk["usage"] = nullptr;
    }
    EventBehind(chunk_head_, chunk);
  }

  void End() override {
    if (stream_) {
      if (options_.include_usage) {
        Json chunk = Head("chat.completion.chunk");
        chunk["choices"] = Json::array();
        chunk["usage"] = UsageToJson(usage_.Total(options_.n));
        Event(chunk);
      }
      return Raw("data: [DONE]\n\n");
    }
    whole_ = Head("chat.completion");
    whole_["choices"] = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      Choice& c = choices_[i];
      // The arguments of a call that was cut off are no JSON; such a call is not handed out as one to carry out.
      if (!c.calls.empty() && c.finish != FinishReason::kLength) {
        std::erase_if(c.calls.get_ref<Json::array_t&>(), [](const Json& call) {
          return !Json::accept(call["function"]["arguments"].get_ref<const std::string&>());
        });
      }
      Json message = {{"role", "assistant"}, {"content", c.content}};
      if (!c.reasoning.empty()) SetReasoning(&message, c.reasoning);
      for (Json& call : c.calls) {
        if (IsCustom(call["function"]["name"].get_ref<const std::string&>())) call = ToCustom(call);
      }
      if (!c.calls.empty()) message["tool_calls"] = std::move(c.calls);
      Json choice = {{"index", i}, {"message", std::move(message)}, {"logprobs", nullptr}};
      if (options_.logprobs) choice["logprobs"] = {{"content", std::move(c.logprobs)}, {"refusal", nullptr}};
      choice["finish_reason"] = FinishReasonName(c.finish);
      if (!c.stop_reason.is_null()) choice["stop_reason"] = c.stop_reason;
      whole_["choices"].push_back(std::move(choice));
    }
    whole_["usage"] = UsageToJson(usage_.Total(options_.n));
  }

  const ChatOptions options_;
  std::vector<Choice> choices_;
  const std::string id_;
  const int64_t created_;
  const std::string chunk_head_;
  UsageSum usage_;
};

// The parts of a message, each as text; results of tools stay apart. `only_notes`: nothing of it can be read.
Json ReadContent(const Json& content, const std::string& path, bool* only_notes) {
  *only_notes = false;
  if (!content.is_array()) return content;
  Json parts = Json::array();
  bool notes = !content.empty();
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string part_path = path + "[" + std::to_string(i) + "]";
    if (part.is_object() && part.contains("type") && part["type"] == "tool_result") {
      Json result = part;
      if (result.contains("content")) result["content"] = ReadParts(result["content"], part_path + ".content");
      parts.push_back(std::move(result));
      notes = false;
      continue;
    }
    PartText read = ReadPart(part, part_path);
    parts.push_back({{"type", "text"}, {"text", std::move(read.text)}});
    notes = notes && read.is_note;
  }
  *only_notes = notes;
  return parts;
}

// {type: custom, custom: {name, input}} to the function that it is to the model.
void ReadCustomCall(Json* call) {
  if (!call->is_object() || !call->contains("custom") || !(*call)["custom"].is_object()) return;
  const Fields custom((*call)["custom"], "custom");
  const Json arguments = {{"input", custom.Text("input").value_or("")}};
  (*call)["function"] = {{"name", custom.Text("name").value_or("")}, {"arguments", Dump(arguments)}};
}

// OpenAI's messages to those that the encoder knows.
Json ReadMessages(const Fields& fields, bool* continue_last) {
  const Json* list = fields.Array("messages");
  if (list == nullptr) Refuse("messages", "messages is missing");
  Json messages = Json::array();
  std::string unreadable;  // the last user's message, if there is nothing in it to answer
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string path = "messages[" + std::to_string(i) + "]";
    const Fields in((*list)[i], path);
    const std::string role = in.Text("role").value_or("");
    static constexpr std::array kRoles = {"system",    "developer", "user",
                                          "assistant", "tool",      "latest_reminder"};
    if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
      Refuse(path + ".role",
             path + ".role is \"" + role + "\"; expected system, developer, user, assistant or tool");
    }
    Json m = {{"role", role == "developer" ? "system" : role}};
    bool only_notes = false;
    if (const Json* content = in.Get("content")) m["content"] = ReadContent(*content, path + ".content", &only_notes);
    if (role == "user") unreadable = only_notes ? path + ".content" : "";
    for (const char* name : {"tool_calls", "tool_call_id", "task", "tools"}) {
      if (const Json* value = in.Get(name)) m[name] = *value;
    }
    if (m.contains("tool_calls") && m["tool_calls"].is_array()) {
      for (Json& call : m["tool_calls"]) ReadCustomCall(&call);
    }
    const auto reasoning = in.Text("reasoning_content");
    const auto alias = in.Get("reasoning") != nullptr && in.Get("reasoning")->is_string()
                           ? in.Text("reasoning")
                           : std::nullopt;
    if (role == "assistant" && (reasoning || alias)) m["reasoning_content"] = reasoning ? *reasoning : *alias;
    if (in.Bool("prefix").value_or(false)) {
      if (role != "assistant" || i + 1 != list->size())
        Refuse(path + ".prefix", path + ".prefix belongs on the last message, an assistant's");
      *continue_last = true;
    }
    messages.push_back(std::move(m));
  }
  RefuseUnreadable(unreadable);
  return messages;
}

Json ReadTools(const Fields& fields, std::vector<std::string>* custom_tools) {
  Json tools = Json::array();
  const Json* list = fields.Array("tools");
  if (list == nullptr) return tools;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string path = "tools[" + std::to_string(i) + "]";
    const Fields tool((*list)[i], path);
    const std::string type = tool.Text("type").value_or("function");
    if (type == "custom") {
      const Json* given = tool.Object("custom");
      if (given == nullptr) Refuse(path + ".custom", path + ".custom is missing");
      const Fields custom(*given, path + ".custom");
      const auto name = custom.Text("name");
      if (!name) Refuse(path + ".custom.name", path + ".custom.name is missing");
      Json function = {{"name", *name}, {"parameters", CustomParameters()}};
      if (const auto description = custom.Text("description")) function["description"] = *description;
      tools.push_back({{"type", "function"}, {"function", std::move(function)}});
      custom_tools->push_back(*name);
      continue;
    }
    if (type != "function") {
      Refuse(path + ".type", path + ".type is \"" + type + "\"; only functions and custom tools are supported");
    }
    const Json* function = tool.Object("function");
    if (function == nullptr) Refuse(path + ".function", path + ".function is missing");
    if (!Fields(*function, path + ".function").Text("name"))
      Refuse(path + ".function.name", path + ".function.name is missing");
    tools.push_back({{"type", "function"}, {"function", *function}});
  }
  return tools;
}

std::vector<std::string> ToolNames(const Json& tools) {
  std::vector<std::string> names;
  for (const Json& tool : tools) names.push_back(tool["function"]["name"].get<std::string>());
  return names;
}

void ReadChatToolChoice(const Fields& fields, const Json& tools, GenerationParams* params) {
  params->calls_allowed = !tools.empty();
  params->parallel_calls = fields.Bool("parallel_tool_calls").value_or(true);
  const Json* choice = fields.Get("tool_choice");
  if (choice == nullptr) return;
  std::string mode = choice->is_string() ? choice->get<std::string>() : "";
  std::string name;
  if (choice->is_object()) {
    const Fields object(*choice, "tool_choice");
    mode = object.Text("type").value_or("");
    if (mode == "allowed_tools") return ReadAllowedTools(object, ToolNames(tools), params);
    if (mode == "custom") {
      const Json* custom = object.Object("custom");
      name = custom == nullptr ? "" : Fields(*custom, "tool_choice.custom").Text("name").value_or("");
      mode = "function";
    } else if (mode == "function") {
      const Json* function = object.Object("function");
      name = function == nullptr ? object.Text("name").value_or("")
                                 : Fields(*function, "tool_choice.function").Text("name").value_or("");
      if (name.empty()) Refuse("tool_choice", "tool_choice.function.name is missing");
    }
  }
  if (mode == "auto") return;
  if (mode == "none") {
    params->calls_allowed = false;
    return;
  }
  if (mode != "required" && mode != "function") {
    Refuse("tool_choice",
           "tool_choice must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": "
           "{\"name\": ...}}");
  }
  if (tools.empty()) Refuse("tool_choice", "tool_choice asks for a call, but tools is empty");
  params->required_calls = ToolNames(tools);
  if (mode == "function") {
    const auto& names = params->required_calls;
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      Refuse("tool_choice", "tool_choice names \"" + name + "\", which is not among tools");
    }
    params->required_calls = {name};
    params->parallel_calls = fields.Bool("parallel_tool_calls").value_or(false);
  }
}

// thinking: {type} (DeepSeek), reasoning_effort (OpenAI), chat_template_kwargs (vLLM), enable_thinking (Qwen's name).
Reasoning ReadReasoning(const Api& api, const Fields& fields, GenerationParams* params) {
  Reasoning r = DefaultReasoning(api);
  std::optional<bool> asked;
  if (const auto effort = fields.Text("reasoning_effort")) {
    if (*effort == "none") {
      r.thinking = false;
    } else {
      r.effort = MapEffort(api, *effort, "reasoning_effort");
      asked = true;
    }
  }
  if (const Json* reasoning = fields.Object("reasoning")) {  // OpenRouter's form
    const Fields in(*reasoning, "reasoning");
    if (const auto effort = in.Text("effort")) {
      if (*effort == "none")
        asked = false;
      else
        r.effort = MapEffort(api, *effort, "reasoning.effort"), asked = true;
    }
    if (const auto on = in.Bool("enabled")) asked = *on;
    if (const auto budget = in.Integer("max_tokens", 1)) params->thinking_budget = *budget;
  }
  if (const Json* kwargs = fields.Object("chat_template_kwargs")) {
    const Fields in(*kwargs, "chat_template_kwargs");
    for (const char* name : {"thinking", "enable_thinking"}) {
      if (const auto on = in.Bool(name)) asked = *on;
    }
    if (const auto effort = in.Text("reasoning_effort")) {
      if (*effort != "none") r.effort = MapEffort(api, *effort, "chat_template_kwargs.reasoning_effort");
    }
  }
  if (const auto on = fields.Get("enable_thinking") == nullptr ? std::nullopt : fields.Bool("enable_thinking"))
    asked = *on;
  if (const Json* thinking = fields.Get("thinking")) {
    if (thinking->is_boolean()) {
      asked = thinking->get<bool>();
    } else {
      const Fields in(*thinking, "thinking");
      const std::string type = in.Text("type").value_or("");
      if (type != "enabled" && type != "disabled" && type != "adaptive") {
        Refuse("thinking", "thinking.type is \"" + type + "\"; expected enabled or disabled");
      }
      asked = type != "disabled";
      if (const auto budget = in.Integer("budget_tokens", 1)) params->thinking_budget = *budget;
    }
  }
  if (const auto budget = fields.Integer("thinking_budget", 0)) params->thinking_budget = *budget;
  if (asked) r.thinking = *asked;
  return r;
}

}  // namespace

void ServeChat(const Api& api, const ExchangePtr& exchange) {
  const JsonDocument document = ParseJson(exchange->request().body);
  const Json& body = document.root();
  const Fields fields(body, "");
  CheckModel(api, fields);

  GenerationParams params;
  ReadSampling(api, fields, &params);
  params.chat = true;
  ChatOptions options{ReadReplyOptions(fields)};
  options.logprobs = fields.Bool("logprobs").value_or(false);
  const auto top = fields.Integer("top_logprobs", 0, std::min<int64_t>(100, api.model.vocab_size));
  if (top && *top > 0 && !options.logprobs)
    Refuse("top_logprobs", "top_logprobs is given, but logprobs is not true");
  if (options.logprobs) params.sampling.top_logprobs = static_cast<int>(top.value_or(0));
  const auto max_tokens = fields.Integer("max_tokens", 1);
  const auto max_completion = fields.Integer("max_completion_tokens", 1);
  if (max_tokens && max_completion && *max_tokens != *max_completion) {
    Refuse("max_tokens", "max_tokens and max_completion_tokens contradict each other; send one of them");
  }
  fields.RefuseUnlessEmpty("functions", "use tools");
  fields.RefuseUnlessEmpty("function_call", "use tool_choice");
  fields.RefuseUnlessEmpty("prompt_logprobs", "use /v1/completions with echo and logprobs");
  fields.RefuseUnlessEmpty("audio", "this model reads and writes text only");
  if (!fields.Bool("add_generation_prompt").value_or(true) &&
      !fields.Bool("continue_final_message").value_or(false)) {
    Refuse("add_generation_prompt",
           "add_generation_prompt: false is supported with continue_final_message: true only");
  }

  const OutputForm form = ReadResponseFormat(fields);
  ChatInput input;
  input.schema = form.shown;
  input.continue_last = fields.Bool("continue_final_message").value_or(false);
  input.messages = ReadMessages(fields, &input.continue_last);
  input.tools = ReadTools(fields, &options.custom_tools);
  input.reasoning = ReadReasoning(api, fields, &params);
  bool any_tools = !input.tools.empty();
  for (const Json& m : input.messages) any_tools = any_tools || (m.contains("tools") && !m["tools"].empty());
  ReadChatToolChoice(fields, input.tools, &params);
  if (input.tools.empty() && any_tools && params.required_calls.empty()) {
    const Json* choice = fields.Get("tool_choice");
    params.calls_allowed = choice == nullptr || *choice != "none";
  }

  if (!form.format.is_null() && input.continue_last) {
    Refuse(form.param, form.param + " is about the whole reply, of which the last message is the beginning already");
  }
  GrammarPlan plan = PlanForm(api, form, input.tools, &params);
  const ChatPrompt prompt = MakeChatPrompt(api, TenantOf(api, exchange->request()), input);
  params.thinking = prompt.starts_in_reasoning;
  LimitTokens(api, prompt.ids->size(), max_tokens ? max_tokens : max_completion, ErrorForm::kOpenAi, "messages",
              &params);

  const auto job = std::make_shared<Job>();
  AddSequences(job.get(), {.prompt = prompt.ids, .params = params, .text = prompt.text}, options.n);
  RunWithGrammar(api, exchange, ErrorForm::kOpenAi, std::move(plan), job,
                 [reply = std::make_shared<ChatReply>(api, exchange, options), job] { reply->Run(job); });
}

}  // namespace dsv4::server
