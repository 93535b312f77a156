#include "server/api/chat_input.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "server/api/content.h"
#include "server/api/history.h"
#include "server/api/output_form.h"
#include "server/api/reasoning.h"

namespace dsv4::server {

namespace {

// Returns the parts of a message as texts; results of tools stay separate. `only_notes`: the model can read no part of
// it. The reasoning parts of the assistant are left out.
Json ReadContent(const Json& content, const std::string& path, bool by_assistant, bool* only_notes) {
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
    if (by_assistant && IsReasoningPart(part)) continue;
    PartText read = ReadPart(part, part_path);
    parts.push_back({{"type", "text"}, {"text", std::move(read.text)}});
    notes = notes && read.is_note;
  }
  *only_notes = notes;
  return parts;
}

// Turns {type: custom, custom: {name, input}} into the function that the model sees.
void ReadCustomCall(Json* call) {
  if (!call->is_object() || !call->contains("custom") || !(*call)["custom"].is_object()) return;
  const Fields custom((*call)["custom"], "custom");
  const Json* input = custom.Get("input");
  const Json arguments = {{"input", input == nullptr ? "" : input->is_string() ? *input : Json(Dump(*input))}};
  (*call)["function"] = {{"name", custom.Text("name").value_or("")}, {"arguments", Dump(arguments)}};
}

void ReadCalls(Json* message) {
  const auto calls = message->find("tool_calls");
  if (calls == message->end() || !calls->is_array()) return;
  for (Json& call : *calls) {
    ReadCustomCall(&call);
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    Json& function = call["function"];
    if (function.contains("arguments")) function["arguments"] = ReadArguments(&function["arguments"]);
  }
}

// Reads the reasoning, content and calls of an assistant message.
void ReadAssistant(const Fields& in, Json* m) {
  const std::string reasoning = ReadMessageReasoning(in);
  if (!reasoning.empty()) (*m)["reasoning_content"] = reasoning;
  if (!in.Has("content") && in.Has("refusal")) (*m)["content"] = *in.Text("refusal");
  ReadCalls(m);
}

std::string ReadRole(const Fields& in) {
  const std::optional<std::string> role = in.Text("role");
  static constexpr std::array kRoles = {"system", "developer", "user", "assistant", "tool", "latest_reminder"};
  if (role && std::find(kRoles.begin(), kRoles.end(), *role) != kRoles.end()) return *role;
  Refuse(in.Path("role"), in.Path("role") + " is " + (role ? "\"" + *role + "\"" : "missing") +
                              "; expected system, developer, user, assistant or tool");
}

// Turns OpenAI's messages into messages that the encoder knows.
Json ReadMessages(const Fields& fields, std::optional<bool>* continue_last) {
  const Json* list = fields.Array("messages");
  if (list == nullptr) Refuse("messages", "messages is missing");
  Json messages = Json::array();
  std::string unreadable;  // path of the last user message if it has nothing to answer
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string path = "messages[" + std::to_string(i) + "]";
    const Fields in((*list)[i], path);
    const std::string role = ReadRole(in);
    Json m = {{"role", role}};
    bool only_notes = false;
    if (const Json* content = in.Get("content"))
      m["content"] = ReadContent(*content, path + ".content", role == "assistant", &only_notes);
    if (role == "user") unreadable = only_notes ? path + ".content" : "";
    for (const char* name : {"tool_calls", "tool_call_id", "task", "tools"}) {
      if (const Json* value = in.Get(name)) m[name] = *value;
    }
    if (role == "assistant") ReadAssistant(in, &m);
    if (in.Bool("prefix").value_or(false)) {
      if (role != "assistant" || i + 1 != list->size())
        Refuse(path + ".prefix", path + ".prefix is allowed only on the last message, with the role assistant");
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
  if (tools.empty()) Refuse("tool_choice", "tool_choice requires a call, but tools is empty");
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

}  // namespace

ChatInput ReadChatInput(const Api& api, const Fields& fields, const OutputForm& form, GenerationParams* params,
                        std::vector<std::string>* custom_tools) {
  if (!fields.Bool("add_generation_prompt").value_or(true) && !fields.Bool("continue_final_message").value_or(false)) {
    Refuse("add_generation_prompt", "add_generation_prompt: false is supported with continue_final_message: true only");
  }
  ChatInput input;
  HistoryEnd end{.continues = fields.Bool("continue_final_message"),
                 .param = "messages",
                 .missing_results =
                     "the last message calls tools, and the results are missing: add a tool message for "
                     "each call"};
  input.messages = ReadMessages(fields, &end.continues);
  input.drop_thinking = ReadDropThinking(fields);
  input.tools = ReadTools(fields, custom_tools);
  input.reasoning = ReadReasoning(api, fields, params);
  bool any_tools = !input.tools.empty();
  for (const Json& m : input.messages) any_tools = any_tools || (m.contains("tools") && !m["tools"].empty());
  ReadChatToolChoice(fields, input.tools, params);
  if (input.tools.empty() && any_tools && params->required_calls.empty()) {
    const Json* choice = fields.Get("tool_choice");
    params->calls_allowed = choice == nullptr || *choice != "none";
  }
  end.whole_reply = !form.format.is_null() || !params->required_calls.empty();
  FinishHistory(end, &input);
  if (!form.format.is_null() && input.continue_last) {
    Refuse(form.param,
           form.param + " applies to a whole reply; it cannot be used when the last message begins the reply");
  }
  input.schema = form.shown;
  return input;
}

ChatInput ReadChatToEncode(const Api& api, const Fields& fields) {
  GenerationParams params;
  std::vector<std::string> custom_tools;
  return ReadChatInput(api, fields, ReadResponseFormat(fields), &params, &custom_tools);
}

}  // namespace dsv4::server
