// Chat encoding: turns a conversation in OpenAI form into the exact prompt text that DeepSeek-V4 was trained on.
//
//   auto request = dsv4::ParseChatRequest(R"({"messages": [{"role": "user", "content": "Hi"}], "thinking": true})");
//   auto prompt = dsv4::RenderPrompt(*request, dsv4::DetectDialect(model_dir));
//   ids = tokenizer->Encode(*prompt);      // the whole prompt in one call: splitting it changes the ids
//
// A conversation whose last message is a user's or a tool's ends with "<｜Assistant｜><think>" or
// "<｜Assistant｜></think>". So the model's output starts inside the reasoning or inside the content; output_parser.h
// parses it. RenderServedPrompt ends other conversations in the same way.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dsv4/export.h"
#include "dsv4/status.h"
#include "dsv4/tokenizer.h"

namespace dsv4 {

// Releases of V4 with different prompts. They differ only in the text of the reasoning effort.
enum class ChatDialect {
  kV4Preview,  // Flash, Pro (April 2026)
  kV40731,     // Flash of 2026-07-31 and later
};

// The names are "v4" and "v4-0731". Error: kInvalidArgument, which lists both names.
DSV4_API std::string_view ChatDialectName(ChatDialect dialect);
DSV4_API Result<ChatDialect> ParseChatDialect(std::string_view name);

// Returns the dialect of the encoder in the checkpoint (encoding/encoding_dsv4.py), since config and tokenizer files
// are the same in both releases. Returns kV4Preview if there is no encoder or its dialect cannot be determined.
DSV4_API ChatDialect DetectDialect(const std::string& model_dir);

enum class Role { kSystem, kUser, kAssistant, kTool, kLatestReminder, kDeveloper };

// Quick instructions of DeepSeek's own product. The model answers each with one short text.
enum class ChatTask { kNone, kAction, kQuery, kAuthority, kDomain, kTitle, kReadUrl };

// Reasoning effort. In thinking mode it adds a text after BOS:
//             kDefault   kLow       kHigh                kMax
//   preview   nothing    an error   nothing              "Absolute maximum..."
//   0731      nothing    nothing    "Absolute maximum.." "Beyond maximum..."
// kDefault is a request without a level. DeepSeek's hosted 0731 service sends kHigh for such a request.
enum class ReasoningEffort { kDefault, kLow, kHigh, kMax };

// A part of a message, of type "text" or "tool_result" (the result of a tool call). Any other type is written as
// "[Unsupported TYPE]", as the official encoder does.
struct ContentBlock {
  std::string type = "text";
  std::string text;
  std::string tool_call_id;  // tool_result only
};

struct ToolCall {
  std::string id;  // "": none
  std::string name;
  std::string arguments;  // JSON text of an object; text that is not JSON becomes one parameter named "arguments"
};

struct Message {
  Role role = Role::kUser;
  std::string content;
  std::vector<ContentBlock> content_blocks;  // user: replaces content if not empty; ignored for other roles
  std::string reasoning_content;             // assistant
  std::vector<ToolCall> tool_calls;          // assistant
  std::string tool_call_id;                  // tool
  ChatTask task = ChatTask::kNone;           // user, assistant
  bool wo_eos = false;                       // assistant: omits EOS, so that the model continues this message
  std::vector<std::string> tools;            // system, developer: JSON text of each tool's "function" object
  std::string response_format;               // system, developer: JSON text; "": none
};

struct ChatRequest {
  std::vector<Message> messages;
  // Tools and response format of the whole request. RenderPrompt adds them to the first message if that is a system
  // message; otherwise it inserts an empty system message before it.
  std::vector<std::string> tools;
  std::string response_format;
  bool thinking = false;
  ReasoningEffort effort = ReasoningEffort::kDefault;
  // Thinking mode: omits the reasoning and the developer messages before the last user turn. Ignored if the request
  // contains tools.
  bool drop_thinking = true;
  bool add_bos = true;
};

// Parses
//   {"messages": [...], "tools": [...], "response_format": {...}, "thinking": true, "effort": "max",
//    "drop_thinking": true, "add_default_bos_token": true}
// Only "messages" is required. Thinking is off by default. Aliases: "enable_thinking" for "thinking",
// "reasoning_effort" for "effort" (the value "none" turns thinking off), "prefix" for "wo_eos"; {"type": "enabled"}
// means true. The content of a message is null, a string, or a list of parts, which are joined by "\n\n". The arguments
// of a call are JSON text or an object. Other fields (model, temperature, ...) are ignored. Error: kInvalidArgument,
// which names the field.
DSV4_API Result<ChatRequest> ParseChatRequest(std::string_view json);

// Returns JSON text that ParseChatRequest parses to the same request, one message per line. Replaces invalid UTF-8 by
// U+FFFD.
DSV4_API std::string ChatRequestToJson(const ChatRequest& request);

// Returns the prompt text. Error: kInvalidArgument, which names the message (an effort that the dialect does not have,
// an empty developer message, arguments that are valid JSON but not an object, a field that the role cannot have).
DSV4_API Result<std::string> RenderPrompt(const ChatRequest& request, ChatDialect dialect);

// A prompt, and the ranges of it that are copied from the request (contents, reasoning, calls, schemas). The encoder
// writes everything else. The format needs special tokens only outside of these ranges.
struct RenderedPrompt {
  std::string text;
  std::vector<TextRange> content_ranges;  // in order; the bytes are unchanged
};
// Same errors as RenderPrompt.
DSV4_API Result<RenderedPrompt> RenderPromptWithRanges(const ChatRequest& request, ChatDialect dialect);

// The form of a system or developer message after another role's message.
enum class LaterSystem {
  kPlain,         // its text
  kReminderTags,  // its text in <system-reminder> tags, as DeepSeek's library writes it for Anthropic's API
};

// Returns the prompt of a chat that a model answers, whatever its last message is. It is the official encoder's prompt
// for a list of a system message, then turns of user and assistant. Other lists differ:
//   - The prompt ends with the header of the assistant's turn, or in the text of a last message with wo_eos. A last
//     message with a task ends with the task's token.
//   - Every message of the assistant has a header, also the first message and the second of two.
//   - Leading system and developer messages are one text, joined by "\n\n". Empty ones are left out.
//   - A later one becomes user text in its place. So the user's turn before it continues, and the prompt up to it stays
//     a prefix of the next prompt.
// Same errors as RenderPrompt, but a developer message may be empty.
DSV4_API Result<RenderedPrompt> RenderServedPrompt(const ChatRequest& request, ChatDialect dialect,
                                                   LaterSystem later = LaterSystem::kPlain);

// Treatment of text inside content_ranges that spells a special token.
//   kOfficial  it becomes the special token; the ids are the same as with the official encoder
//   kText      it stays ordinary text, so that no content can end a turn, begin one, or forge a call
enum class SpecialTokensInContent { kOfficial, kText };
DSV4_API EncodeOptions EncodeOptionsOf(const RenderedPrompt& prompt, SpecialTokensInContent in_content);

}  // namespace dsv4
