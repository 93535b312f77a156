// Rendering of a conversation. The specification is the official encoder, encoding_dsv4.py, which is published with the
// weights. RenderServedPrompt differs from it in the list of messages (chat_served.cc) and in turn headers.
#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "base/str.h"
#include "dsv4/chat.h"
#include "text/chat_served.h"
#include "text/format.h"
#include "text/json_value.h"

namespace dsv4 {

namespace {

using namespace format;

constexpr std::string_view kToolsHead =
    R"(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)";
constexpr std::string_view kToolsTail =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";
constexpr std::string_view
    kResponseFormatHead = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

constexpr std::string_view kAbsoluteEffort =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the "
    "root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial "
    "scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n";
constexpr std::string_view kBeyondEffort =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively "
    "decompose the "
    "problem into its most fundamental components, trace every causal chain to its root, and resolve the "
    "underlying "
    "cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are "
    "certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n\n";

std::string_view TaskToken(ChatTask task) {
  static constexpr std::array<std::string_view, 7> kTokens = {
      "", "<｜action｜>", "<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜title｜>", "<｜read_url｜>"};
  return kTokens[static_cast<size_t>(task)];
}

Result<std::string_view> EffortText(ReasoningEffort effort, ChatDialect dialect) {
  const bool preview = dialect == ChatDialect::kV4Preview;
  switch (effort) {
    case ReasoningEffort::kDefault:
      return std::string_view();
    case ReasoningEffort::kLow:
      if (preview) return InvalidArgument("effort: this model (V4 preview) has no \"low\"; use \"high\" or \"max\"");
      return std::string_view();
    case ReasoningEffort::kHigh:
      return preview ? std::string_view() : kAbsoluteEffort;
    case ReasoningEffort::kMax:
      return preview ? kAbsoluteEffort : kBeyondEffort;
  }
  return InvalidArgument("effort: not a level");
}

Status CheckMessage(const Message& m) {
  const bool instructs = m.role == Role::kSystem || m.role == Role::kDeveloper;
  if (!instructs && !m.tools.empty()) return InvalidArgument("tools belong on a system or developer message");
  if (!instructs && !m.response_format.empty()) {
    return InvalidArgument("response_format belongs on a system or developer message");
  }
  if (m.role != Role::kAssistant && !m.tool_calls.empty())
    return InvalidArgument("tool_calls belong on an assistant message");
  if (m.role != Role::kAssistant && m.role != Role::kUser && m.task != ChatTask::kNone) {
    return InvalidArgument("task belongs on a user or assistant message");
  }
  return {};
}

Status CheckMessages(const std::vector<Message>& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const Status status = CheckMessage(messages[i]);
    if (!status.ok()) return InvalidArgument(StrCat("messages[", i, "]: ", status.message()));
  }
  return {};
}

// The official encoder refuses empty developer messages.
Status CheckDevelopers(const std::vector<Message>& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == Role::kDeveloper && messages[i].content.empty())
      return InvalidArgument(StrCat("messages[", i, "]: a developer message needs content"));
  }
  return {};
}

// Adds the request's tools and response format to its first message. If that is not a system message, inserts one.
Status PlaceTools(const ChatRequest& request, std::vector<Message>* messages) {
  if (request.tools.empty() && request.response_format.empty()) return {};
  if (messages->empty() || messages->front().role != Role::kSystem) {
    messages->insert(messages->begin(), Message{.role = Role::kSystem});
  }
  Message& system = messages->front();
  if (!request.tools.empty() && !system.tools.empty()) {
    return InvalidArgument("tools: given for the request and on the system message; give them once");
  }
  if (!request.response_format.empty() && !system.response_format.empty()) {
    return InvalidArgument("response_format: given for the request and on the system message; give it once");
  }
  if (!request.tools.empty()) system.tools = request.tools;
  if (!request.response_format.empty()) system.response_format = request.response_format;
  return {};
}

// Joins consecutive users and tool results into one user message made of blocks. After a task only results are joined.
std::vector<Message> Merge(std::vector<Message> messages) {
  std::vector<Message> merged;
  for (Message& m : messages) {
    const bool after_user = !merged.empty() && merged.back().role == Role::kUser;
    if (m.role == Role::kTool) {
      if (!after_user) merged.push_back({.role = Role::kUser});
      merged.back().content_blocks.push_back({"tool_result", std::move(m.content), std::move(m.tool_call_id)});
    } else if (m.role == Role::kUser) {
      std::vector<ContentBlock> blocks = std::move(m.content_blocks);
      if (blocks.empty()) blocks.push_back({.text = std::move(m.content)});
      if (!after_user || merged.back().task != ChatTask::kNone) merged.push_back({.role = Role::kUser, .task = m.task});
      std::move(blocks.begin(), blocks.end(), std::back_inserter(merged.back().content_blocks));
    } else {
      merged.push_back(std::move(m));
    }
  }
  return merged;
}

// Sorts the results of one message into the order of the latest calls. An unknown id counts as the first call.
void OrderResults(std::vector<Message>* messages) {
  std::unordered_map<std::string, size_t> position;
  for (Message& m : *messages) {
    if (m.role == Role::kAssistant && !m.tool_calls.empty()) {
      position.clear();
      for (size_t i = 0; i < m.tool_calls.size(); ++i) {
        if (!m.tool_calls[i].id.empty()) position[m.tool_calls[i].id] = i;
      }
    }
    if (m.role != Role::kUser || position.empty()) continue;
    std::vector<ContentBlock> results;
    for (const ContentBlock& block : m.content_blocks) {
      if (block.type == "tool_result") results.push_back(block);
    }
    const auto rank = [&](const ContentBlock& block) {
      const auto it = position.find(block.tool_call_id);
      return it == position.end() ? 0 : it->second;
    };
    std::stable_sort(results.begin(), results.end(),
                     [&](const ContentBlock& a, const ContentBlock& b) { return rank(a) < rank(b); });
    auto next = results.begin();
    for (ContentBlock& block : m.content_blocks) {
      if (block.type == "tool_result") block = std::move(*next++);
    }
  }
}

bool IsUserLike(const Message& m) { return m.role == Role::kUser || m.role == Role::kDeveloper; }

// Index of the last user-like message; -1: none.
int64_t LastUser(const std::vector<Message>& messages) {
  const auto last = std::find_if(messages.rbegin(), messages.rend(), IsUserLike);
  return messages.rend() - last - 1;
}

// Before the last user-like message: removes the reasoning of assistants, and developer messages.
void DropThinking(std::vector<Message>* messages) {
  const int64_t last_user = LastUser(*messages);
  std::vector<Message> kept;
  for (size_t i = 0; i < messages->size(); ++i) {
    Message& m = (*messages)[i];
    if (static_cast<int64_t>(i) < last_user) {
      if (m.role == Role::kDeveloper) continue;
      m.reasoning_content.clear();
    }
    kept.push_back(std::move(m));
  }
  *messages = std::move(kept);
}

// A prompt that is being written: text of the encoder and text of the request.
class PromptWriter {
 public:
  void Own(std::string_view text) { prompt_.text += text; }
  void Given(std::string_view text) {
    if (text.empty()) return;
    prompt_.content_ranges.push_back({prompt_.text.size(), prompt_.text.size() + text.size()});
    prompt_.text += text;
  }
  RenderedPrompt Take() { return std::move(prompt_); }

 private:
  RenderedPrompt prompt_;
};

void AppendInstructions(const Message& m, PromptWriter* out) {
  out->Given(m.content);
  if (!m.tools.empty()) {
    out->Own("\n\n");
    out->Own(kToolsHead);
    for (const std::string& schema : m.tools) {
      if (&schema != m.tools.data()) out->Own("\n");
      out->Given(schema);
    }
    out->Own(kToolsTail);
  }
  if (m.response_format.empty()) return;
  out->Own("\n\n");
  out->Own(kResponseFormatHead);
  out->Given(m.response_format);
}

void AppendBlocks(const Message& m, PromptWriter* out) {
  for (const ContentBlock& block : m.content_blocks) {
    if (&block != m.content_blocks.data()) out->Own("\n\n");
    if (block.type == "text") {
      out->Given(block.text);
    } else if (block.type == "tool_result") {
      out->Own("<tool_result>");
      out->Given(block.text);
      out->Own("</tool_result>");
    } else {
      out->Own("[Unsupported ");
      out->Given(block.type);
      out->Own("]");
    }
  }
}

void AppendParameter(std::string_view name, bool is_string, std::string_view value, PromptWriter* out) {
  out->Own(kParameterBegin);
  out->Given(name);
  out->Own(is_string ? "\" string=\"true\">" : "\" string=\"false\">");
  out->Given(value);
  out->Own(kParameterEnd);
}

Status AppendToolCall(const ToolCall& call, PromptWriter* out) {
  out->Own(kInvokeBegin);
  out->Given(call.name);
  out->Own("\">\n");
  const Result<JsonValue> arguments = ParseJsonValue(call.arguments);
  if (!arguments.ok()) {
    AppendParameter("arguments", /*is_string=*/true, call.arguments, out);
  } else if (!arguments->is_object()) {
    return InvalidArgument(
        StrCat("arguments of the call of ", call.name, " are ", JsonKindName(*arguments), ", expected an object"));
  } else {
    for (const JsonMember& member : arguments->members) {
      if (&member != arguments->members.data()) out->Own("\n");
      const bool is_string = member.value.is_string();
      AppendParameter(member.key, is_string, is_string ? member.value.text : DumpJson(member.value), out);
    }
  }
  out->Own("\n");
  out->Own(kInvokeEnd);
  return {};
}

// Which of the assistant's turns have a header.
enum class Headers : uint8_t {
  kAfterUsers,  // as in the official encoder
  kAll,
};

class Renderer {
 public:
  Renderer(std::vector<Message> messages, bool thinking, bool drop, Headers headers)
      : messages_(std::move(messages)), thinking_(thinking), drop_(drop), headers_(headers) {
    if (thinking_ && drop_) DropThinking(&messages_);
    last_user_ = LastUser(messages_);
  }

  Status Render(std::string_view effort, PromptWriter* out) const {
    for (size_t i = 0; i < messages_.size(); ++i) {
      if (i == 0 && thinking_) out->Own(effort);
      if (i == 0 && headers_ == Headers::kAll && messages_[0].role == Role::kAssistant) AppendHeader(i, out);
      DSV4_RETURN_IF_ERROR(AppendMessage(i, out));
      AppendTransition(i, out);
    }
    return {};
  }

 private:
  // Whether the prompt includes the reasoning at message i.
  bool ThinksAt(size_t i) const { return thinking_ && (!drop_ || static_cast<int64_t>(i) >= last_user_); }

  Status AppendMessage(size_t i, PromptWriter* out) const {
    const Message& m = messages_[i];
    switch (m.role) {
      case Role::kSystem:
        AppendInstructions(m, out);
        return {};
      case Role::kDeveloper:
        out->Own(kUser);
        AppendInstructions(m, out);
        return {};
      case Role::kUser:
        out->Own(kUser);
        AppendBlocks(m, out);
        return {};
      case Role::kLatestReminder:
        out->Own(kReminder);
        out->Given(m.content);
        return {};
      case Role::kAssistant:
        return AppendAssistant(i, out);
      case Role::kTool:
        break;  // merged into user messages
    }
    return Internal("a tool message was not merged");
  }

  Status AppendAssistant(size_t i, PromptWriter* out) const {
    const Message& m = messages_[i];
    const bool after_task = i > 0 && messages_[i - 1].task != ChatTask::kNone;
    if (ThinksAt(i) && !after_task) {
      out->Given(m.reasoning_content);
      out->Own(kEndThink);
    }
    out->Given(m.content);
    if (!m.tool_calls.empty()) {
      out->Own("\n\n");
      out->Own(kCallsBegin);
      out->Own("\n");
      for (const ToolCall& call : m.tool_calls) {
        DSV4_RETURN_IF_ERROR(AppendToolCall(call, out));
        out->Own("\n");
      }
      out->Own(kCallsEnd);
    }
    if (!m.wo_eos) out->Own(kEos);
    return {};
  }

  void AppendHeader(size_t i, PromptWriter* out) const {
    out->Own(kAssistant);
    out->Own(ThinksAt(i) ? kThink : kEndThink);
  }

  // Whether the assistant's turn begins after message i.
  bool TurnFollows(size_t i) const {
    if (i + 1 == messages_.size()) return true;
    const Role next = messages_[i + 1].role;
    // The official encoder writes the header before a reminder.
    const bool before_reminder = headers_ == Headers::kAfterUsers || messages_[i].task != ChatTask::kNone;
    return next == Role::kAssistant || (next == Role::kLatestReminder && before_reminder);
  }

  // Writes the header of the assistant's turn at the end of the message before it.
  void AppendTransition(size_t i, PromptWriter* out) const {
    if (!TurnFollows(i)) return;
    const Message& m = messages_[i];
    if (m.task == ChatTask::kAction) {
      out->Own(kAssistant);
      out->Own(thinking_ ? kThink : kEndThink);
      out->Own(TaskToken(m.task));
    } else if (m.task != ChatTask::kNone) {
      out->Own(TaskToken(m.task));
    } else if (IsUserLike(m) || (headers_ == Headers::kAll && !m.wo_eos)) {
      AppendHeader(i, out);
    }
  }

  std::vector<Message> messages_;
  bool thinking_;
  bool drop_;
  Headers headers_;
  int64_t last_user_;
};

Result<RenderedPrompt> Render(const ChatRequest& request, ChatDialect dialect, Headers headers) {
  DSV4_ASSIGN_OR_RETURN(const std::string_view effort, EffortText(request.effort, dialect));
  std::vector<Message> messages = request.messages;
  DSV4_RETURN_IF_ERROR(PlaceTools(request, &messages));
  messages = Merge(std::move(messages));
  OrderResults(&messages);
  const bool any_tools = std::any_of(messages.begin(), messages.end(),
                                     [](const Message& m) { return !m.tools.empty(); });
  PromptWriter prompt;
  if (request.add_bos) prompt.Own(kBos);
  const Renderer renderer(std::move(messages), request.thinking, request.drop_thinking && !any_tools, headers);
  DSV4_RETURN_IF_ERROR(renderer.Render(effort, &prompt));
  return prompt.Take();
}

}  // namespace

Result<RenderedPrompt> RenderPromptWithRanges(const ChatRequest& request, ChatDialect dialect) {
  DSV4_RETURN_IF_ERROR(CheckMessages(request.messages));
  DSV4_RETURN_IF_ERROR(CheckDevelopers(request.messages));
  return Render(request, dialect, Headers::kAfterUsers);
}

Result<RenderedPrompt> RenderServedPrompt(const ChatRequest& request, ChatDialect dialect, LaterSystem later) {
  DSV4_RETURN_IF_ERROR(CheckMessages(request.messages));
  return Render(ToServed(request, later), dialect, Headers::kAll);
}

Result<std::string> RenderPrompt(const ChatRequest& request, ChatDialect dialect) {
  DSV4_ASSIGN_OR_RETURN(RenderedPrompt prompt, RenderPromptWithRanges(request, dialect));
  return std::move(prompt.text);
}

}  // namespace dsv4
