// The JSON form of a chat request, and the detection of a checkpoint's dialect.
#include <array>

#include "base/file.h"
#include "base/str.h"
#include "dsv4/chat.h"
#include "dsv4/json_text.h"
#include "text/json_value.h"

namespace dsv4 {

namespace {

template <typename Value>
struct Named {
  std::string_view name;
  Value value;
};

constexpr std::array<Named<Role>, 6> kRoles = {{{"system", Role::kSystem},
                                                {"user", Role::kUser},
                                                {"assistant", Role::kAssistant},
                                                {"tool", Role::kTool},
                                                {"latest_reminder", Role::kLatestReminder},
                                                {"developer", Role::kDeveloper}}};
constexpr std::array<Named<ChatTask>, 6> kTasks = {{{"action", ChatTask::kAction},
                                                    {"query", ChatTask::kQuery},
                                                    {"authority", ChatTask::kAuthority},
                                                    {"domain", ChatTask::kDomain},
                                                    {"title", ChatTask::kTitle},
                                                    {"read_url", ChatTask::kReadUrl}}};
constexpr std::array<Named<ReasoningEffort>, 3> kEfforts = {
    {{"low", ReasoningEffort::kLow}, {"high", ReasoningEffort::kHigh}, {"max", ReasoningEffort::kMax}}};
constexpr std::array<Named<ChatDialect>, 2> kDialects = {
    {{"v4", ChatDialect::kV4Preview}, {"v4-0731", ChatDialect::kV40731}}};

Status Wrong(std::string_view path, const JsonValue& value, std::string_view expected) {
  std::string found(JsonKindName(value));
  if (value.is_string() && value.text.size() <= 40) found = DumpJson(value);
  return InvalidArgument(StrCat(path, ": expected ", expected, ", found ", found));
}

// The member; null if it is missing or JSON's null.
const JsonValue* Get(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.Find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

template <typename Table, typename Value>
Status ReadName(const JsonValue& value, std::string_view path, const Table& table, Value* out) {
  std::string names;
  for (const auto& entry : table) {
    if (value.is_string() && value.text == entry.name) return *out = entry.value, Status();
    names += StrCat(names.empty() ? "" : ", ", entry.name);
  }
  return Wrong(path, value, StrCat("one of ", names));
}

Status ReadText(const JsonValue& object, std::string_view key, std::string_view path, std::string* out) {
  const JsonValue* value = Get(object, key);
  if (value == nullptr) return {};
  if (!value->is_string()) return Wrong(StrCat(path, ".", key), *value, "a string");
  *out = value->text;
  return {};
}

Status ReadFlag(const JsonValue& object, std::string_view key, std::string_view path, bool* out) {
  const JsonValue* value = Get(object, key);
  if (value == nullptr) return {};
  if (!value->is_bool()) return Wrong(StrCat(path, key), *value, "true or false");
  *out = value->is(JsonValue::Kind::kTrue);
  return {};
}

Status ReadBlocks(const JsonValue& list, const std::string& path, std::vector<ContentBlock>* blocks);

// Content as one text, with the parts joined as outside of user messages.
Status ReadContentText(const JsonValue& content, const std::string& path, std::string* out) {
  if (content.is_string()) return *out = content.text, Status();
  if (!content.is_array()) return Wrong(path, content, "a string or an array of parts");
  std::vector<ContentBlock> blocks;
  DSV4_RETURN_IF_ERROR(ReadBlocks(content, path, &blocks));
  for (const ContentBlock& block : blocks) {
    if (&block != blocks.data()) *out += "\n\n";
    *out += block.type == "text" ? block.text : StrCat("[Unsupported ", block.type, "]");
  }
  return {};
}

Status ReadBlocks(const JsonValue& list, const std::string& path, std::vector<ContentBlock>* blocks) {
  for (size_t i = 0; i < list.items.size(); ++i) {
    const JsonValue& item = list.items[i];
    const std::string item_path = StrCat(path, "[", i, "]");
    ContentBlock& block = blocks->emplace_back();
    if (item.is_string()) {
      block.text = item.text;
      continue;
    }
    const JsonValue* type = Get(item, "type");
    if (type == nullptr || !type->is_string()) {
      return InvalidArgument(StrCat(item_path, ": expected a string or an object with a \"type\""));
    }
    block.type = type->text;
    if (block.type == "text") {
      DSV4_RETURN_IF_ERROR(ReadText(item, "text", item_path, &block.text));
    } else if (block.type == "tool_result") {
      DSV4_RETURN_IF_ERROR(ReadText(item, "tool_use_id", item_path, &block.tool_call_id));
      DSV4_RETURN_IF_ERROR(ReadText(item, "tool_call_id", item_path, &block.tool_call_id));
      if (const JsonValue* content = Get(item, "content")) {
        DSV4_RETURN_IF_ERROR(ReadContentText(*content, StrCat(item_path, ".content"), &block.text));
      }
    }
  }
  return {};
}

Status ReadContent(const JsonValue& object, const std::string& path, Message* m) {
  if (const JsonValue* content = Get(object, "content")) {
    if (content->is_array() && m->role == Role::kUser) {
      DSV4_RETURN_IF_ERROR(ReadBlocks(*content, StrCat(path, ".content"), &m->content_blocks));
    } else {
      DSV4_RETURN_IF_ERROR(ReadContentText(*content, StrCat(path, ".content"), &m->content));
    }
  }
  const JsonValue* blocks = m->role == Role::kUser ? Get(object, "content_blocks") : nullptr;
  if (blocks == nullptr) return {};
  if (!blocks->is_array()) return Wrong(StrCat(path, ".content_blocks"), *blocks, "an array");
  if (!blocks->items.empty()) m->content_blocks.clear();
  return ReadBlocks(*blocks, StrCat(path, ".content_blocks"), &m->content_blocks);
}

// The schema is the whole "function" object, including unknown members.
Status ReadTools(const JsonValue& object, std::string_view path, std::vector<std::string>* tools) {
  const JsonValue* list = Get(object, "tools");
  if (list == nullptr) return {};
  if (!list->is_array()) return Wrong(StrCat(path, "tools"), *list, "an array");
  for (size_t i = 0; i < list->items.size(); ++i) {
    const JsonValue* function = Get(list->items[i], "function");
    const std::string item_path = StrCat(path, "tools[", i, "]");
    if (function == nullptr || !function->is_object()) {
      return InvalidArgument(StrCat(item_path, ": expected {\"type\": \"function\", \"function\": {...}}"));
    }
    const JsonValue* parameters = Get(*function, "parameters");
    if (parameters != nullptr && !parameters->is_object()) {
      return Wrong(StrCat(item_path, ".function.parameters"), *parameters, "an object (a JSON schema)");
    }
    tools->push_back(DumpJson(*function));
  }
  return {};
}

Status ReadResponseFormat(const JsonValue& object, std::string_view path, std::string* out) {
  const JsonValue* format = Get(object, "response_format");
  if (format == nullptr) return {};
  if (!format->is_object()) return Wrong(StrCat(path, "response_format"), *format, "an object");
  if (!format->members.empty()) *out = DumpJson(*format);
  return {};
}

Status ReadToolCalls(const JsonValue& object, const std::string& path, std::vector<ToolCall>* calls) {
  const JsonValue* list = Get(object, "tool_calls");
  if (list == nullptr) return {};
  if (!list->is_array()) return Wrong(StrCat(path, ".tool_calls"), *list, "an array");
  for (size_t i = 0; i < list->items.size(); ++i) {
    const std::string call_path = StrCat(path, ".tool_calls[", i, "]");
    ToolCall& call = calls->emplace_back();
    DSV4_RETURN_IF_ERROR(ReadText(list->items[i], "id", call_path, &call.id));
    const JsonValue* function = Get(list->items[i], "function");
    const JsonValue* name = function != nullptr ? Get(*function, "name") : nullptr;
    if (name == nullptr || !name->is_string()) {
      return InvalidArgument(StrCat(call_path, ": expected {\"function\": {\"name\": ..., \"arguments\": ...}}"));
    }
    call.name = name->text;
    const JsonValue* arguments = Get(*function, "arguments");
    if (arguments == nullptr) {
      call.arguments = "{}";
    } else if (arguments->is_string()) {
      call.arguments = arguments->text;
    } else if (arguments->is_object()) {
      call.arguments = DumpJson(*arguments);
    } else {
      return Wrong(StrCat(call_path, ".function.arguments"), *arguments, "JSON text or an object");
    }
  }
  return {};
}

Status ReadMessage(const JsonValue& object, const std::string& path, Message* m) {
  if (!object.is_object()) return Wrong(path, object, "an object");
  const JsonValue* role = Get(object, "role");
  if (role == nullptr) return InvalidArgument(StrCat(path, ".role is missing"));
  DSV4_RETURN_IF_ERROR(ReadName(*role, StrCat(path, ".role"), kRoles, &m->role));
  DSV4_RETURN_IF_ERROR(ReadContent(object, path, m));
  DSV4_RETURN_IF_ERROR(ReadText(object, "reasoning_content", path, &m->reasoning_content));
  DSV4_RETURN_IF_ERROR(ReadText(object, "tool_call_id", path, &m->tool_call_id));
  DSV4_RETURN_IF_ERROR(ReadToolCalls(object, path, &m->tool_calls));
  if (const JsonValue* task = Get(object, "task")) {
    DSV4_RETURN_IF_ERROR(ReadName(*task, StrCat(path, ".task"), kTasks, &m->task));
  }
  const std::string prefix = path + ".";
  DSV4_RETURN_IF_ERROR(ReadFlag(object, "prefix", prefix, &m->wo_eos));
  DSV4_RETURN_IF_ERROR(ReadFlag(object, "wo_eos", prefix, &m->wo_eos));
  DSV4_RETURN_IF_ERROR(ReadTools(object, prefix, &m->tools));
  return ReadResponseFormat(object, prefix, &m->response_format);
}

Status ReadThinking(const JsonValue& root, bool* thinking) {
  for (const std::string_view key : {"enable_thinking", "thinking"}) {
    const JsonValue* value = Get(root, key);
    if (value == nullptr) continue;
    const JsonValue* type = Get(*value, "type");
    if (type != nullptr && type->is_string() && (type->text == "enabled" || type->text == "disabled")) {
      *thinking = type->text == "enabled";
    } else {
      DSV4_RETURN_IF_ERROR(ReadFlag(root, key, "", thinking));
    }
  }
  return {};
}

Status ReadEffort(const JsonValue& root, ChatRequest* request) {
  const JsonValue* effort = Get(root, "effort");
  const JsonValue* reasoning_effort = Get(root, "reasoning_effort");
  if (effort != nullptr) return ReadName(*effort, "effort", kEfforts, &request->effort);
  if (reasoning_effort == nullptr) return {};
  if (reasoning_effort->is_string() && reasoning_effort->text == "none") return request->thinking = false, Status();
  return ReadName(*reasoning_effort, "reasoning_effort", kEfforts, &request->effort);
}

// ---- Writing

// Writes an object's members, `"key": value, ...`, only the members that the request has.
class MembersWriter {
 public:
  void Add(std::string_view key, std::string_view json) {
    if (!out_.empty()) out_ += ", ";
    out_ += StrCat("\"", key, "\": ", json);
  }
  void AddText(std::string_view key, std::string_view text) {
    if (!text.empty()) Add(key, JsonQuote(text));
  }
  void AddTools(const std::vector<std::string>& tools) {
    std::string list;
    for (const std::string& tool : tools) {
      list += StrCat(list.empty() ? "" : ", ", "{\"type\": \"function\", \"function\": ", tool, "}");
    }
    if (!tools.empty()) Add("tools", StrCat("[", list, "]"));
  }
  std::string Object() const { return StrCat("{", out_, "}"); }

 private:
  std::string out_;
};

template <typename Table, typename Value>
std::string_view NameIn(const Table& table, Value value) {
  for (const auto& entry : table) {
    if (entry.value == value) return entry.name;
  }
  return "";
}

std::string BlocksToJson(const std::vector<ContentBlock>& blocks) {
  std::string list;
  for (const ContentBlock& block : blocks) {
    MembersWriter part;
    part.AddText("type", block.type);
    part.AddText("tool_call_id", block.tool_call_id);
    part.Add(block.type == "tool_result" ? "content" : "text", JsonQuote(block.text));
    list += StrCat(list.empty() ? "" : ", ", part.Object());
  }
  return StrCat("[", list, "]");
}

std::string CallsToJson(const std::vector<ToolCall>& calls) {
  std::string list;
  for (const ToolCall& call : calls) {
    MembersWriter function;
    function.Add("name", JsonQuote(call.name));
    function.Add("arguments", JsonQuote(call.arguments));
    MembersWriter out;
    out.AddText("id", call.id);
    out.AddText("type", "function");
    out.Add("function", function.Object());
    list += StrCat(list.empty() ? "" : ", ", out.Object());
  }
  return StrCat("[", list, "]");
}

std::string MessageToRequestJson(const Message& m) {
  MembersWriter out;
  out.AddText("role", NameIn(kRoles, m.role));
  out.AddText("tool_call_id", m.tool_call_id);
  out.AddText("reasoning_content", m.reasoning_content);
  out.Add("content", m.content_blocks.empty() ? JsonQuote(m.content) : BlocksToJson(m.content_blocks));
  if (!m.tool_calls.empty()) out.Add("tool_calls", CallsToJson(m.tool_calls));
  out.AddText("task", NameIn(kTasks, m.task));
  if (m.wo_eos) out.Add("prefix", "true");
  out.AddTools(m.tools);
  if (!m.response_format.empty()) out.Add("response_format", m.response_format);
  return out.Object();
}

}  // namespace

std::string ChatRequestToJson(const ChatRequest& request) {
  std::string list;
  for (const Message& m : request.messages) list += StrCat(list.empty() ? "\n" : ",\n", MessageToRequestJson(m));
  MembersWriter out;
  out.Add("messages", StrCat("[", list, "\n]"));
  out.AddTools(request.tools);
  if (!request.response_format.empty()) out.Add("response_format", request.response_format);
  out.Add("thinking", request.thinking ? "true" : "false");
  out.AddText("effort", NameIn(kEfforts, request.effort));
  if (!request.drop_thinking) out.Add("drop_thinking", "false");
  if (!request.add_bos) out.Add("add_default_bos_token", "false");
  return StrCat(out.Object(), "\n");
}

Result<ChatRequest> ParseChatRequest(std::string_view json) {
  DSV4_ASSIGN_OR_RETURN(const JsonValue root, ParseJsonValue(json));
  if (!root.is_object()) return InvalidArgument(StrCat("expected a JSON object, found ", JsonKindName(root)));
  ChatRequest request;
  const JsonValue* messages = Get(root, "messages");
  if (messages == nullptr) return InvalidArgument("messages is missing");
  if (!messages->is_array()) return Wrong("messages", *messages, "an array");
  for (size_t i = 0; i < messages->items.size(); ++i) {
    DSV4_RETURN_IF_ERROR(
        ReadMessage(messages->items[i], StrCat("messages[", i, "]"), &request.messages.emplace_back()));
  }
  DSV4_RETURN_IF_ERROR(ReadTools(root, "", &request.tools));
  const JsonValue* format = Get(root, "response_format");
  const JsonValue* type = format != nullptr ? Get(*format, "type") : nullptr;
  if (type == nullptr || !type->is_string() || type->text != "text") {
    DSV4_RETURN_IF_ERROR(ReadResponseFormat(root, "", &request.response_format));
  }
  DSV4_RETURN_IF_ERROR(ReadThinking(root, &request.thinking));
  DSV4_RETURN_IF_ERROR(ReadEffort(root, &request));
  DSV4_RETURN_IF_ERROR(ReadFlag(root, "drop_thinking", "", &request.drop_thinking));
  DSV4_RETURN_IF_ERROR(ReadFlag(root, "add_default_bos_token", "", &request.add_bos));
  return request;
}

std::string_view ChatDialectName(ChatDialect dialect) { return kDialects[static_cast<size_t>(dialect)].name; }

Result<ChatDialect> ParseChatDialect(std::string_view name) {
  for (const auto& entry : kDialects) {
    if (entry.name == name) return entry.value;
  }
  return InvalidArgument(StrCat("\"", name, "\" is not a chat encoding; use v4 or v4-0731"));
}

EncodeOptions EncodeOptionsOf(const RenderedPrompt& prompt, SpecialTokensInContent in_content) {
  if (in_content == SpecialTokensInContent::kOfficial) return {};
  return {.literal = prompt.content_ranges};
}

ChatDialect DetectDialect(const std::string& model_dir) {
  const Result<std::string> encoder = ReadFile(model_dir + "/encoding/encoding_dsv4.py", int64_t{16} << 20);
  if (!encoder.ok()) return ChatDialect::kV4Preview;
  // 0731 has a table of effort texts; the preview has one constant.
  for (const std::string_view sign : {"REASONING_EFFORT_PROMPTS", "DEFAULT_REASONING_EFFORT", "Beyond maximum"}) {
    if (encoder->find(sign) != std::string::npos) return ChatDialect::kV40731;
  }
  return ChatDialect::kV4Preview;
}

}  // namespace dsv4
