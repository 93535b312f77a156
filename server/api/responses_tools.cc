#include "server/api/responses_tools.h"

#include <algorithm>
#include <utility>

namespace dsv4::server {

namespace {

constexpr size_t kMaxToolName = 256;  // bytes of a tool name with its namespace: every tool repeats the namespace

class ToolReader {
 public:
  ToolReader(ChatInput* input, NamespacedTools* names) : input_(input), names_(names) {}

  // `defer`: which tools are hidden at first: none, those with defer_loading, or all.
  enum class Defer : uint8_t { kNone, kMarked, kAll };
  void AddList(const Json* list, const std::string& path, const std::string& space, Defer defer) {
    for (size_t i = 0; list != nullptr && list->is_array() && i < list->size(); ++i)
      Add((*list)[i], path + "[" + std::to_string(i) + "]", space, defer);
  }

 private:
  void Add(const Json& json, const std::string& path, const std::string& space, Defer defer) {
    if (defer == Defer::kAll && !(json.is_object() && json.contains("name")))
      return;  // tools in the history are not refused
    const Fields tool(json, path);
    const std::string type = tool.Text("type").value_or("function");
    const bool marked = tool.Bool("defer_loading").value_or(false);
    if (type == "namespace") {
      const Defer inner = defer == Defer::kMarked && marked ? Defer::kAll : defer;
      return AddList(tool.Array("tools"), path + ".tools", tool.Text("name").value_or(""), inner);
    }
    if (type != "function" && type != "custom") return;  // run by OpenAI's servers
    const auto name = tool.Text("name");
    if (!name) Refuse(path + ".name", path + ".name is missing");
    if (!space.empty() && space.size() + name->size() > kMaxToolName) {
      if (defer == Defer::kAll) return;
      Refuse(path + ".name", path + ".name and the name of its namespace have " +
                                 std::to_string(space.size() + name->size()) + " bytes together; at most " +
                                 std::to_string(kMaxToolName));
    }
    const std::string full = space.empty() ? *name : space + "__" + *name;
    if (names_->contains(full)) return;
    Json function = {{"name", full}};
    if (const auto description = tool.Text("description")) function["description"] = *description;
    if (const Json* parameters = tool.Object("parameters")) function["parameters"] = *parameters;
    if (type == "custom") function["parameters"] = CustomParameters();
    if (const auto strict = tool.Bool("strict")) function["strict"] = *strict;
    input_->tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    if (defer == Defer::kAll || (defer == Defer::kMarked && marked)) input_->tools.back()["defer_loading"] = true;
    (*names_)[full] = {space, *name, type == "custom"};
  }

  ChatInput* const input_;
  NamespacedTools* const names_;
};

using Defer = ToolReader::Defer;

bool HasMember(const Json& object, const char* name, const char* value) {
  const auto it = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && it != object.end() && *it == value;
}

}  // namespace

void ReadResponsesTools(const Fields& fields, const Json& before, ChatInput* input, NamespacedTools* names) {
  ToolReader reader(input, names);
  const Json* tools = fields.Array("tools");
  // If OpenAI's servers would search, the model gets all tools.
  const bool client_searches = tools != nullptr && std::any_of(tools->begin(), tools->end(), [](const Json& tool) {
                                 return HasMember(tool, "type", "tool_search") &&
                                        HasMember(tool, "execution", "client");
                               });
  reader.AddList(tools, "tools", "", client_searches ? Defer::kMarked : Defer::kNone);
  const Json* given = fields.Get("input");
  for (const Json* items : {&before, given}) {
    if (items == nullptr || !items->is_array()) continue;
    for (size_t i = 0; i < items->size(); ++i) {
      const std::string path = (items == given ? "input[" : "previous_response_id: item [") + std::to_string(i) + "]";
      if (!HasMember((*items)[i], "type", "tool_search_output")) continue;
      reader.AddList(Fields((*items)[i], path).Array("tools"), path + ".tools", "", Defer::kAll);
    }
  }
}

std::string FoundTools(const Fields& output, const std::string& path) {
  ChatInput found;
  NamespacedTools names;
  ToolReader(&found, &names).AddList(output.Array("tools"), path + ".tools", "", Defer::kAll);
  std::string all;
  for (const Json& tool : found.tools) all += (all.empty() ? "" : "\n\n") + ToolText(tool);
  return all.empty() ? "[no tools found]" : all;
}

}  // namespace dsv4::server
