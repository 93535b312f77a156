// POST /v1/messages and /v1/messages/count_tokens: Anthropic's form.
#include <algorithm>
#include <optional>
#include <utility>

#include "server/api/body_fields.h"
#include "server/api/content.h"
#include "server/api/history.h"
#include "server/api/output_form.h"
#include "server/api/reply.h"

namespace dsv4::server {

namespace {

constexpr ErrorForm kForm = ErrorForm::kAnthropic;
constexpr size_t kMaxFoundText = size_t{4}
                                 << 20;  // bytes of tool descriptions in results; each tool may be named often

const char* StopReason(FinishReason reason, bool matched) {
  switch (reason) {
    case FinishReason::kLength:
      return "max_tokens";
    case FinishReason::kToolCalls:
      return "tool_use";
    default:
      return matched ? "stop_sequence" : "end_turn";
  }
}

Json Usage(const TokenCounts& c) {
  return {{"input_tokens", c.prompt - c.cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", c.cached},
          {"output_tokens", c.completion}};
}

class MessagesReply : public Reply {
 public:
  MessagesReply(const Api& api, ExchangePtr exchange, bool stream, int64_t prompt_tokens)
      : Reply(api, std::move(exchange), kForm, stream, 1), id_(NewId("msg_")) {
    counts_.prompt = prompt_tokens;
  }

 private:
  enum class Block : uint8_t { kNone, kThinking, kText, kToolUse };

  HeaderList Headers() const override { return {{"request-id", exchange_->request().id}}; }
  std::string Ping() const override { return "event: ping\ndata: {\"type\":\"ping\"}\n\n"; }

  Json Message(Json content, Json stop_reason, Json stop_sequence) const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", api_.options.model_name},
            {"content", std::move(content)},
            {"stop_reason", std::move(stop_reason)},
            {"stop_sequence", std::move(stop_sequence)},
            {"usage", Usage(counts_)}};
  }

  std::string Begin() override {
    const Json start = {{"type", "message_start"}, {"message", Message(Json::array(), nullptr, nullptr)}};
    return "event: message_start\ndata: " + Dump(start) + "\n\n" + Ping();
  }

  // A proof of origin. The server does not check it, but clients keep only thinking blocks that have one.
  std::string Signature() const { return "dsv4-" + id_.substr(4); }

  void Open(Block block, const Json& content_block) {
    Close();
    block_ = block;
    ++index_;
    if (stream_) {
      NamedEvent("content_block_start",
                 {{"type", "content_block_start"}, {"index", index_}, {"content_block", content_block}});
    }
    content_.push_back(content_block);
  }
  void Close() {
    if (block_ == Block::kNone) return;
    if (block_ == Block::kThinking) {
      content_.back()["signature"] = Signature();
      if (stream_) Delta({{"type", "signature_delta"}, {"signature", Signature()}});
    }
    if (stream_) NamedEvent("content_block_stop", {{"type", "content_block_stop"}, {"index", index_}});
    block_ = Block::kNone;
  }
  void Delta(const Json& delta) {
    NamedEvent("content_block_delta", {{"type", "content_block_delta"}, {"index", index_}, {"delta", delta}});
  }
  void Add(const char* field, const char* delta_type, const std::string& text) {
    if (stream_) return Delta({{"type", delta_type}, {field, text}});
    content_.back()[field].get_ref<std::string&>() += text;
  }

  void Take(StepOutput& output) override {
    counts_ = output.counts;
    for (const OutputDelta& d : output.deltas) {
      switch (d.kind) {
        case OutputDelta::Kind::kReasoning:
          if (block_ != Block::kThinking)
            Open(Block::kThinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
          Add("thinking", "thinking_delta", d.text);
          break;
        case OutputDelta::Kind::kContent:
          if (block_ != Block::kText) Open(Block::kText, {{"type", "text"}, {"text", ""}});
          Add("text", "text_delta", d.text);
          break;
        case OutputDelta::Kind::kToolCallBegin:
          Open(Block::kToolUse,
               {{"type", "tool_use"}, {"id", NewId("toolu_")}, {"name", d.text}, {"input", Json::object()}});
          arguments_.clear();
          break;
        case OutputDelta::Kind::kToolCallArguments:
          arguments_ += d.text;
          if (stream_) Delta({{"type", "input_json_delta"}, {"partial_json", d.text}});
          break;
        case OutputDelta::Kind::kToolCallEnd:
          if (!stream_) content_.back()["input"] = Json::parse(arguments_, nullptr, /*allow_exceptions=*/false);
          arguments_.clear();
          Close();
          break;
      }
    }
    finish_ = output.finish;
    matched_stop_ = output.matched_stop;
  }

  void End() override {
    const bool cut_call = block_ == Block::kToolUse;
    Close();
    const Json reason = StopReason(finish_, !matched_stop_.empty());
    const Json sequence = matched_stop_.empty() ? Json(nullptr) : Json(matched_stop_);
    if (stream_) {
      NamedEvent("message_delta", {{"type", "message_delta"},
                                   {"delta", {{"stop_reason", reason}, {"stop_sequence", sequence}}},
                                   {"usage", Usage(counts_)}});
      NamedEvent("message_stop", {{"type", "message_stop"}});
      return;
    }
    // A call with incomplete arguments is not returned, so that no client carries it out.
    if (cut_call) content_.erase(content_.size() - 1);
    whole_ = Dump(Message(std::move(content_), reason, sequence));
  }

  std::string ErrorEvent(const ApiError& error) override {
    return "event: error\ndata: " + Dump(ErrorBody(kForm, error, exchange_->request().id)) + "\n\n";
  }

  const std::string id_;
  TokenCounts counts_;
  Json content_ = Json::array();
  Block block_ = Block::kNone;
  int index_ = -1;
  std::string arguments_;
  FinishReason finish_ = FinishReason::kNone;
  std::string matched_stop_;
};

// Claude Code adds a line to the system text that differs in every request. It would make every prompt new to the
// cache.
bool IsBillingLine(std::string_view text) { return text.starts_with("x-anthropic-billing-header:"); }

std::string WithoutBillingLine(const std::string& text) {
  if (!IsBillingLine(text)) return text;
  const size_t end = text.find('\n');
  return end == std::string::npos ? "" : text.substr(end + 1);
}

std::string ReadSystem(const Fields& fields) {
  const Json* system = fields.Get("system");
  if (system == nullptr) return "";
  if (system->is_string()) return WithoutBillingLine(system->get<std::string>());
  if (!system->is_array()) Refuse("system", "system must be a string or an array of text blocks");
  std::string all;
  for (size_t i = 0; i < system->size(); ++i) {
    const std::string text = WithoutBillingLine(ReadPart((*system)[i], "system[" + std::to_string(i) + "]").text);
    if (text.empty()) continue;
    if (!all.empty()) all += "\n\n";
    all += text;
  }
  return all;
}

bool IsToolReference(const Json& block) {
  const auto type = block.is_object() ? block.find("type") : block.end();
  return block.is_object() && type != block.end() && *type == "tool_reference";
}

// Deferred tools, which results name.
struct ToolShelf {
  const Json& tools;
  size_t bytes = 0;  // size of the descriptions so far

  std::optional<std::string> TextOf(const Json& name, const std::string& path) {
    const auto found = std::find_if(tools.begin(), tools.end(), [&](const Json& tool) {
      return IsDeferred(tool) && tool["function"]["name"] == name;
    });
    if (found == tools.end()) return std::nullopt;
    std::string text = ToolText(*found);
    bytes += text.size();
    if (bytes > kMaxFoundText) {
      Refuse(path, path + ": the tools that results name have more than " + std::to_string(kMaxFoundText) +
                       " bytes together; name each tool only where it was found first");
    }
    return text;
  }
};

// Reads a tool's result. If it found deferred tools, their descriptions are added here.
std::string ReadResult(const Json& content, const std::string& path, ToolShelf* shelf) {
  if (!content.is_array() || std::none_of(content.begin(), content.end(), IsToolReference))
    return ReadParts(content, path);
  Json blocks = content;
  for (Json& block : blocks) {
    if (!IsToolReference(block)) continue;
    if (auto text = shelf->TextOf(block.value("tool_name", Json()), path))
      block = {{"type", "text"}, {"text", std::move(*text)}};
  }
  return ReadParts(blocks, path);
}

// `only_notes`: the model can read no part of it.
Json ReadUser(const Json& content, const std::string& path, ToolShelf* shelf, bool* only_notes) {
  Json blocks = Json::array();
  bool notes = !content.empty();
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string block_path = path + ".content[" + std::to_string(i) + "]";
    const Fields block(content[i], block_path);
    if (block.Text("type").value_or("") != "tool_result") {
      PartText read = ReadPart(content[i], block_path);
      blocks.push_back({{"type", "text"}, {"text", std::move(read.text)}});
      notes = notes && read.is_note;
      continue;
    }
    const auto id = block.Text("tool_use_id");
    if (!id) Refuse(block_path + ".tool_use_id", block_path + ".tool_use_id is missing");
    const Json* result = block.Get("content");
    blocks.push_back({{"type", "tool_result"},
                      {"tool_use_id", *id},
                      {"content", result == nullptr ? "" : ReadResult(*result, block_path + ".content", shelf)}});
    notes = false;
  }
  *only_notes = notes;
  return {{"role", "user"}, {"content", std::move(blocks)}};
}

Json ReadAssistant(const Json& content, const std::string& path) {
  Json m = {{"role", "assistant"}, {"content", ""}};
  std::string text, reasoning;
  Json calls = Json::array();
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string block_path = path + ".content[" + std::to_string(i) + "]";
    const Fields block(content[i], block_path);
    const std::string type = block.Text("type").value_or("");
    if (type == "thinking") {
      reasoning += block.Text("thinking").value_or("");
    } else if (type == "tool_use") {
      const auto name = block.Text("name");
      if (!name) Refuse(block_path + ".name", block_path + ".name is missing");
      calls.push_back({{"id", block.Text("id").value_or("")},
                       {"type", "function"},
                       {"function", {{"name", *name}, {"arguments", ReadArguments(block.Get("input"))}}}});
    } else {
      text += ReadPart(content[i], block_path).text;
    }
  }
  m["content"] = text;
  if (!reasoning.empty()) m["reasoning_content"] = reasoning;
  if (!calls.empty()) m["tool_calls"] = std::move(calls);
  return m;
}

void ReadMessages(const Fields& fields, ChatInput* input) {
  const std::string system = ReadSystem(fields);
  if (!system.empty()) input->messages.push_back({{"role", "system"}, {"content", system}});
  const Json* list = fields.Array("messages");
  if (list == nullptr) Refuse("messages", "messages is missing");
  if (list->empty()) Refuse("messages", "messages is empty: there is nothing to answer");
  ToolShelf shelf{.tools = input->tools};
  std::string unreadable;  // path of the last user message if it has nothing to answer
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string path = "messages[" + std::to_string(i) + "]";
    const Fields in((*list)[i], path);
    const std::string role = in.Text("role").value_or("");
    const Json* content = in.Get("content");
    if (content == nullptr) Refuse(path + ".content", path + ".content is missing");
    if (role != "user" && role != "assistant" && role != "system") {
      Refuse(path + ".role", path + ".role is \"" + role + "\"; expected user or assistant");
    }
    bool only_notes = false;
    if (content->is_string()) {
      input->messages.push_back({{"role", role}, {"content", *content}});
    } else if (content->is_array()) {
      input->messages.push_back(role == "assistant" ? ReadAssistant(*content, path)
                                                    : ReadUser(*content, path, &shelf, &only_notes));
      if (role == "system") input->messages.back()["role"] = "system";
    } else {
      Refuse(path + ".content", path + ".content must be a string or an array of blocks");
    }
    if (role == "user") unreadable = only_notes ? path + ".content" : "";
  }
  RefuseUnreadable(unreadable);
  input->later_system = LaterSystem::kReminderTags;
  FinishHistory({.continues = std::nullopt, .whole_reply = false, .param = "messages", .missing_results = ""}, input);
}

void ReadTools(const Fields& fields, ChatInput* input) {
  const Json* list = fields.Array("tools");
  if (list == nullptr) return;
  // If Anthropic's servers would search the deferred tools, the model gets all of them.
  const bool client_searches = std::none_of(list->begin(), list->end(), [](const Json& tool) {
    const Json type = tool.is_object() ? tool.value("type", Json()) : Json();
    return type.is_string() && type.get<std::string>().starts_with("tool_search_tool");
  });
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string path = "tools[" + std::to_string(i) + "]";
    const Fields tool((*list)[i], path);
    const std::string type = tool.Text("type").value_or("custom");
    if (type != "custom") continue;  // tools that Anthropic's servers run, such as web search
    const auto name = tool.Text("name");
    if (!name) Refuse(path + ".name", path + ".name is missing");
    Json function = {{"name", *name}};
    if (const auto description = tool.Text("description")) function["description"] = *description;
    if (const Json* schema = tool.Object("input_schema")) function["parameters"] = *schema;
    if (const auto strict = tool.Bool("strict")) function["strict"] = *strict;
    input->tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    if (client_searches && tool.Bool("defer_loading").value_or(false)) input->tools.back()["defer_loading"] = true;
  }
}

// Whether Anthropic's servers run a tool, such as web search. With `name`: the tool of that name.
bool HasServerTool(const Fields& fields, const std::optional<std::string>& name) {
  const Json* list = fields.Array("tools");
  return list != nullptr && std::any_of(list->begin(), list->end(), [&](const Json& tool) {
           const Json type = tool.value("type", Json());
           return !type.is_null() && type != "custom" && (!name || tool.value("name", Json()) == *name);
         });
}

void ReadMessagesToolChoice(const Fields& fields, const ChatInput& input, GenerationParams* params) {
  params->calls_allowed = !input.tools.empty();
  const Json* choice = fields.Object("tool_choice");
  if (choice == nullptr) return;
  const Fields in(*choice, "tool_choice");
  const std::string type = in.Text("type").value_or("");
  params->parallel_calls = !in.Bool("disable_parallel_tool_use").value_or(false);
  if (type == "auto") return;
  if (type == "none") {
    params->calls_allowed = false;
    return;
  }
  if (type != "any" && type != "tool") Refuse("tool_choice", "tool_choice.type must be auto, any, tool or none");
  const std::string name = in.Text("name").value_or("");
  const bool known = std::any_of(input.tools.begin(), input.tools.end(),
                                 [&](const Json& tool) { return tool["function"]["name"] == name; });
  // The model answers from its own knowledge.
  if (type == "tool" && !known && HasServerTool(fields, name)) return;
  if (type == "any" && input.tools.empty() && HasServerTool(fields, std::nullopt)) return;
  if (input.tools.empty()) Refuse("tool_choice", "tool_choice requires a call, but tools is empty");
  if (type == "tool") {
    if (!known) Refuse("tool_choice", "tool_choice names \"" + name + "\", which is not among tools");
    params->required_calls = {name};
    return;
  }
  for (const Json& tool : input.tools) {
    if (!IsDeferred(tool)) params->required_calls.push_back(tool["function"]["name"].get<std::string>());
  }
}

void ReadReasoning(const Api& api, const Fields& fields, ChatInput* input, GenerationParams* params) {
  Reasoning& r = input->reasoning;
  r = DefaultReasoning(api);
  r.thinking = false;  // off by default, as in Anthropic's models
  if (const Json* thinking = fields.Object("thinking")) {
    const Fields in(*thinking, "thinking");
    const std::string type = in.Text("type").value_or("");
    if (type != "enabled" && type != "disabled" && type != "adaptive" && type != "between_tools") {
      Refuse("thinking", "thinking.type must be enabled, disabled or adaptive");
    }
    r.thinking = type != "disabled";
    if (const auto budget = in.Integer("budget_tokens", 1)) params->thinking_budget = *budget;
  }
  const Json* config = fields.Object("output_config");
  if (config == nullptr) return;
  const Fields in(*config, "output_config");
  // Claude Code also sends an effort when thinking is disabled.
  if (const auto effort = in.Text("effort"); effort && *effort != "none")
    r.effort = MapEffort(api, *effort, "output_config.effort");
}

}  // namespace

void ServeMessages(const Api& api, const ExchangePtr& exchange) {
  const JsonDocument document = ParseJson(exchange->request().body);
  const Json& body = document.root();
  const Fields fields(body, "", &kMessagesBody);
  CheckModel(api, fields);
  GenerationParams params;
  params.chat = true;
  params.sampling = api.default_sampling;
  if (const auto t = fields.Number("temperature")) params.sampling.temperature = static_cast<float>(*t);
  ReadCuts(fields, &params.sampling);
  ReadSeed(fields, &params.sampling);
  params.stops = ReadStops(fields, "stop_sequences");
  params.speculate = fields.Bool("speculate").value_or(true);
  const auto max_tokens = fields.Integer("max_tokens");
  if (!max_tokens) Refuse("max_tokens", "max_tokens is missing");

  ChatInput input;
  ReadTools(fields, &input);
  ReadMessages(fields, &input);
  ReadMessagesToolChoice(fields, input, &params);
  ReadReasoning(api, fields, &input, &params);
  const OutputForm form = ReadMessagesFormat(fields);
  input.schema = form.shown;
  if (!form.format.is_null() && input.continue_last) {
    Refuse(form.param,
           form.param + " applies to a whole reply; it cannot be used when the last message begins the reply");
  }
  GrammarPlan plan = PlanForm(api, form, input.tools, &params);
  const ChatPrompt prompt = MakeChatPrompt(api, TenantOf(api, exchange->request()), input);
  params.thinking = prompt.starts_in_reasoning;
  const int64_t most = LimitTokens(api, prompt.ids->size(), max_tokens, kForm, "messages");
  const auto job = std::make_shared<Job>();
  job->sequences.push_back({.prompt = prompt.ids,
                            .params = std::make_shared<GenerationParams>(std::move(params)),
                            .text = prompt.text,
                            .max_tokens = most});
  const auto reply = std::make_shared<MessagesReply>(api, exchange, fields.Bool("stream").value_or(false),
                                                     static_cast<int64_t>(prompt.ids->size()));
  RunWithGrammar(api, exchange, kForm, std::move(plan), job, [reply, job] { reply->Run(job); });
}

void ServeCountTokens(const Api& api, const ExchangePtr& exchange) {
  const JsonDocument document = ParseJson(exchange->request().body);
  const Json& body = document.root();
  const Fields fields(body, "", &kCountTokensBody);
  CheckModel(api, fields);
  GenerationParams params;
  ChatInput input;
  ReadTools(fields, &input);
  ReadMessages(fields, &input);
  ReadMessagesToolChoice(fields, input, &params);
  ReadReasoning(api, fields, &input, &params);
  input.schema = ReadMessagesFormat(fields).shown;
  const ChatPrompt prompt = MakeChatPrompt(api, TenantOf(api, exchange->request()), input);
  exchange->Respond(200, "application/json", Dump({{"input_tokens", prompt.ids->size()}}),
                    {{"request-id", exchange->request().id}});
}

}  // namespace dsv4::server
