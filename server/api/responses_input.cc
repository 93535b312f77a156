#include "server/api/responses_input.h"

#include <algorithm>
#include <string>
#include <utility>

#include "server/api/content.h"
#include "server/api/history.h"
#include "server/api/responses_tools.h"
#include "server/api/sealed_text.h"

namespace dsv4::server {

namespace {

constexpr const char* kCompactionTrigger = "compaction_trigger";
// Marks a stored message that the reply continued: both are one turn.
constexpr const char* kContinued = "continued_by_reply";
constexpr const char*
    kCompacted = "The conversation before this message was replaced by this summary, which the assistant wrote:\n\n";

std::string Join(const Json* list, const char* between) {
  std::string all;
  for (size_t i = 0; list != nullptr && list->is_array() && i < list->size(); ++i) {
    if (!(*list)[i].is_string()) continue;
    if (!all.empty()) all += between;
    all += (*list)[i].get<std::string>();
  }
  return all;
}

std::string TextOr(const Fields& item, const char* name, const std::string& otherwise) {
  const Json* value = item.Get(name);
  return value == nullptr ? otherwise : value->is_string() ? value->get<std::string>() : Dump(*value);
}

// Returns the output of commands: [{stdout, stderr, outcome}], or a text.
std::string ShellOutput(const Json* output) {
  if (output == nullptr) return "";
  if (!output->is_array()) return output->is_string() ? output->get<std::string>() : Dump(*output);
  std::string all;
  for (const Json& part : *output) {
    const Fields in(part, "output");
    if (!all.empty()) all += "\n";
    all += TextOr(in, "stdout", "") + TextOr(in, "stderr", "");
    if (const Json* outcome = in.Get("outcome"); outcome != nullptr && outcome->is_object()) {
      const auto code = outcome->find("exit_code");
      all += code == outcome->end() ? "[" + TextOr(Fields(*outcome, "outcome"), "type", "ended") + "]"
                                    : "[exit code " + Dump(*code) + "]";
    }
  }
  return all;
}

// Joins the reasoning, text and calls of a reply, which are separate items, into one message.
class InputReader {
 public:
  explicit InputReader(Json first) : messages_(std::move(first)) {}

  void Add(const Json& json, const std::string& path) {
    const Fields item(json, path);
    const std::string type = item.Text("type").value_or(item.Has("role") ? "message" : "");
    if (type.empty()) Refuse(path + ".type", path + ".type is missing");
    if (type == "message") return AddMessage(item, path);
    if (type == "reasoning") return AddReasoning(item, path);
    if (AddCallOrOutput(item, type, path) || AddRunElsewhere(item, type)) return;
    if (type == "mcp_list_tools") return;    // the tools themselves are in `tools`
    if (type == kCompactionTrigger) return;  // it sets the kind of the reply
    if (type == "compaction" || type == "compaction_summary") {
      if (const auto text = OpenSealedText(TextOr(item, "encrypted_content", ""))) return AddCompaction(*text);
      const std::string summary = TextOr(item, "summary", "");
      return AddNote(summary.empty() ? "[earlier turns were compacted by another service and cannot be read here]"
                                     : summary);
    }
    if (type == "item_reference") {
      return AddNote("[an item that this server does not store: " + TextOr(item, "id", "").substr(0, 80) + "]");
    }
    AddNote(ReadPart(json, path).text);
  }

  // Returns all messages. Throws if the last user message has nothing to answer.
  Json Finish() {
    CloseReply();
    RefuseUnreadable(unreadable_);
    return std::move(messages_);
  }

 private:
  void CloseReply() {
    if (!reply_.is_null()) messages_.push_back(std::exchange(reply_, nullptr));
    has_message_ = continued_ = false;
  }
  Json& OpenReply() {
    if (reply_.is_null()) reply_ = {{"role", "assistant"}, {"content", ""}};
    return reply_;
  }

  void AddMessage(const Fields& item, const std::string& path) {
    const std::string role = item.Text("role").value_or("");
    if (role == "assistant") return AddAssistant(item, path);
    const Json* content = item.Get("content");
    bool only_notes = false;
    const std::string text = content == nullptr ? "" : ReadParts(*content, path + ".content", "\n\n", &only_notes);
    if (role != "user" && role != "system" && role != "developer") {
      Refuse(path + ".role", path + ".role is \"" + role + "\"; expected user, assistant, system or developer");
    }
    if (role == "user") unreadable_ = only_notes ? path + ".content" : "";
    CloseReply();
    messages_.push_back({{"role", role}, {"content", text}});
  }
  void AddAssistant(const Fields& item, const std::string& path) {
    if (has_message_ && !continued_) CloseReply();
    continued_ = item.Has(kContinued);
    if (const std::string reasoning = ReadMessageReasoning(item); !reasoning.empty()) AddReasoningText(reasoning);
    Json content = item.Has("content") ? *item.Get("content") : Json();
    if (content.is_array())
      content.erase(std::remove_if(content.begin(), content.end(), IsReasoningPart), content.end());
    AddText(ReadParts(content, path + ".content"));
    has_message_ = true;
  }
  void AddText(const std::string& text) {
    // A second text after calls belongs to another reply.
    if (OpenReply().contains("tool_calls")) CloseReply();
    Json& open = OpenReply();
    open["content"] = open["content"].get<std::string>() + text;
  }
  // The summary was written by this server's model for the turns that the client has left out.
  void AddCompaction(const std::string& summary) {
    CloseReply();
    messages_.push_back({{"role", "user"}, {"content", std::string(kCompacted) + summary}});
  }
  void AddNote(const std::string& note) { AddText(note + "\n"); }

  void AddReasoning(const Fields& item, const std::string& path) {
    std::string text;
    if (const Json* content = item.Array("content")) text = ReadParts(*content, path + ".content");
    if (text.empty()) text = OpenSealedText(TextOr(item, "encrypted_content", "")).value_or("");
    if (const Json* summary = item.Array("summary"); text.empty() && summary != nullptr) {
      text = ReadParts(*summary, path + ".summary");
    }
    AddReasoningText(text);
  }
  void AddReasoningText(const std::string& text) {
    if (!reply_.is_null() &&
        (reply_.contains("tool_calls") || !reply_["content"].get_ref<const std::string&>().empty())) {
      CloseReply();
    }
    Json& reply = OpenReply();
    reply["reasoning_content"] = reply.value("reasoning_content", std::string()) + text;
  }

  void AddCall(const std::string& name, const std::string& id, std::string arguments) {
    OpenReply()["tool_calls"].push_back(
        {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", std::move(arguments)}}}});
  }
  void AddOutput(const std::string& id, std::string output) {
    CloseReply();
    messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(output)}});
  }
  static std::string CallId(const Fields& item) { return TextOr(item, "call_id", TextOr(item, "id", "")); }

  // Adds calls that the client answers itself.
  bool AddCallOrOutput(const Fields& item, const std::string& type, const std::string& path) {
    if (type == "function_call" || type == "custom_tool_call") {
      auto name = item.Text("name");
      if (!name) Refuse(path + ".name", path + ".name is missing");
      if (const auto space = item.Text("namespace")) *name = *space + "__" + *name;
      const bool custom = type == "custom_tool_call";
      AddCall(*name, CallId(item),
              custom ? Dump({{"input", TextOr(item, "input", "")}}) : ReadArguments(item.Get("arguments")));
    } else if (type == "local_shell_call" || type == "shell_call") {
      AddCall(type == "shell_call" ? "shell" : "local_shell", CallId(item), TextOr(item, "action", "{}"));
    } else if (type == "apply_patch_call") {
      AddCall("apply_patch", CallId(item), TextOr(item, "operation", "{}"));
    } else if (type == "tool_search_call") {
      AddCall("tool_search", CallId(item), TextOr(item, "arguments", "{}"));
    } else if (type == "tool_search_output") {
      AddOutput(CallId(item), FoundTools(item, path));
    } else if (type == "local_shell_call_output" || type == "shell_call_output") {
      AddOutput(CallId(item), ShellOutput(item.Get("output")));
    } else if (type == "apply_patch_call_output") {
      AddOutput(CallId(item), TextOr(item, "status", "") + "\n" + TextOr(item, "output", ""));
    } else if (type == "function_call_output" || type == "custom_tool_call_output") {
      const Json* output = item.Get("output");
      AddOutput(CallId(item), output == nullptr ? "" : ReadParts(*output, path + ".output"));
    } else {
      return false;
    }
    return true;
  }

  // Adds calls that another service has answered; the item has both call and answer.
  bool AddRunElsewhere(const Fields& item, const std::string& type) {
    if (type == "mcp_call") {
      AddCall(TextOr(item, "server_label", "mcp") + "__" + TextOr(item, "name", "call"), TextOr(item, "id", ""),
              TextOr(item, "arguments", "{}"));
      AddOutput(TextOr(item, "id", ""), TextOr(item, "output", TextOr(item, "error", "")));
    } else if (type == "code_interpreter_call") {
      AddCall("code_interpreter", TextOr(item, "id", ""), Dump({{"code", TextOr(item, "code", "")}}));
      std::string logs;
      if (const Json* outputs = item.Array("outputs")) {
        for (const Json& output : *outputs) logs += TextOr(Fields(output, "outputs"), "logs", LeftOut("output"));
      }
      AddOutput(TextOr(item, "id", ""), logs);
    } else if (type == "web_search_call") {
      const Json* action = item.Get("action");
      const bool known = action != nullptr && action->is_object();
      AddNote("[web search" + (known ? ": " + TextOr(Fields(*action, "action"), "query", "") : "") + "]");
    } else if (type == "file_search_call") {
      std::string text = "[file search: " + Join(item.Get("queries"), ", ") + "]";
      if (const Json* results = item.Array("results")) {
        for (const Json& result : *results) text += "\n" + TextOr(Fields(result, "results"), "text", "");
      }
      AddNote(text);
    } else {
      return false;
    }
    return true;
  }

  Json messages_, reply_;
  bool has_message_ = false;  // the open reply has a message, not only notes
  bool continued_ = false;    // the next message continues it
  std::string unreadable_;
};

}  // namespace

Json KeptItems(const Fields& fields, bool continued) {
  const Json* given = fields.Get("input");
  if (given == nullptr) return Json::array();
  if (given->is_string()) return Json::array({{{"type", "message"}, {"role", "user"}, {"content", *given}}});
  Json items = given->is_array() ? *given : Json::array();
  for (Json& item : items) {
    for (const char* name : {"content", "output"}) {
      if (!item.is_object() || !item.contains(name) || !item[name].is_array()) continue;
      for (Json& part : item[name]) {
        if (part.is_object() && part.contains("type") && part["type"].is_string() && !part.contains("text"))
          part = {{"type", "input_text"}, {"text", ReadPart(part, name).text}};
      }
    }
  }
  if (continued && !items.empty() && items.back().is_object()) items.back()[kContinued] = true;
  return items;
}

Json ListedItem(Json item, const std::string& id) {
  if (!item.is_object()) item = {{"type", "message"}, {"role", "user"}, {"content", Dump(item)}};
  item.erase(kContinued);
  if (!item.contains("type")) item["type"] = "message";
  if (!item.contains("id")) item["id"] = id;
  if (item["type"] != "message") return item;
  if (item.contains("content") && item["content"].is_string()) {
    const bool by_assistant = item.value("role", Json()) == "assistant";
    item["content"] = Json::array({{{"type", by_assistant ? "output_text" : "input_text"}, {"text", item["content"]}}});
  }
  if (!item.contains("status")) item["status"] = "completed";
  return item;
}

bool EndsInTrigger(const Fields& fields) {
  const Json* given = fields.Get("input");
  return given != nullptr && given->is_array() && !given->empty() && given->back().is_object() &&
         given->back().value("type", Json()) == kCompactionTrigger;
}

Json ReadResponsesInput(const Fields& fields, const Json* before) {
  Json first = Json::array();
  if (const auto instructions = fields.Text("instructions"); instructions && !instructions->empty()) {
    first.push_back({{"role", "system"}, {"content", *instructions}});
  }
  InputReader reader(std::move(first));
  for (size_t i = 0; before != nullptr && i < before->size(); ++i)
    reader.Add((*before)[i], "previous_response_id: item " + std::to_string(i));
  const Json* given = fields.Get("input");
  if (given == nullptr || (given->is_array() && given->empty())) {
    // Codex checks with an empty input whether the route exists.
    reader.Add({{"role", "user"}, {"content", ""}}, "input");
  } else if (given->is_string()) {
    reader.Add({{"role", "user"}, {"content", *given}}, "input");
  } else if (given->is_array()) {
    for (size_t i = 0; i < given->size(); ++i) reader.Add((*given)[i], "input[" + std::to_string(i) + "]");
  } else {
    Refuse("input", "input must be a string or an array of items");
  }
  return reader.Finish();
}

}  // namespace dsv4::server
