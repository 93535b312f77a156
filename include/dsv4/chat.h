// Chat encoding: a conversation in OpenAI form to the exact prompt text that DeepSeek-V4 was trained on.
//
//   auto request = dsv4::ParseChatRequest(R"({"messages": [{"role": "user", "content": "Hi"}], "thinking": true})");
//   auto prompt = dsv4::RenderPrompt(*request, dsv4::DetectDialect(model_dir));
//   ids = tokenizer->Encode(*prompt);      // the whole prompt at once: splitting it changes ids
//
// The prompt ends with "<｜Assistant｜><think>" or "<｜Assistant｜></think>", so the model's output starts inside
// the reasoning or inside the content (output_parser.h takes it apart).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dsv4/status.h"
#include "dsv4/tokenizer.h"

namespace dsv4 {

// Releases of V4 whose prompts differ (only in the text of the reasoning effort).
enum class ChatDialect {
  kV4Preview,  // Flash, Pro (April 2026)
  kV40731,     // Flash of 2026-07-31 and later
};

// "v4" or "v4-0731". Error: kInvalidArgument, naming both.
std::string_view ChatDialectName(ChatDialect dialect);
Result<ChatDialect> ParseChatDialect(std::string_view name);

// Looks into the encoder that a checkpoint ships (encoding/encoding_dsv4.py); kV4Preview where there is none
// or it tells nothing. Config and tokenizer files are the same in both releases.
ChatDialect DetectDialect(const std::string& model_dir);

enum class Role { kSystem, kUser, kAssistant, kTool, kLatestReminder, kDeveloper };

// Quick instructions of DeepSeek's own product: the model answers with one short text.
enum class ChatTask { kNone, kAction, kQuery, kAuthority, kDomain, kTitle, kReadUrl };

// What the levels write behind BOS in thinking mode:
//             kDefault   kLow       kHigh                kMax
//   preview   nothing    an error   nothing              "Absolute maximum..."
//   0731      nothing    nothing    "Absolute maximum.." "Beyond maximum..."
// kDefault is a request without a level, as the encoder treats it; DeepSeek's hosted 0731 service sends kHigh.
enum class ReasoningEffort { kDefault, kLow, kHigh, kMax };

// A part of a message. "text": its text. "tool_result": the result of a call. Any other type is written as
// "[Unsupported TYPE]", as the official encoder does.
struct ContentBlock {
  std::string type = "text";
  std::string text;
  std::string tool_call_id;  // tool_result only
};

struct ToolCall {
  std::string id;  // "" where there is none
  std::string name;
  std::string arguments;  // JSON text of an object; text that is not JSON becomes one parameter named "arguments"
};

struct Message {
  Role role = Role::kUser;
  std::string content;
  std::vector<ContentBlock> content_blocks;  // user: replaces content when not empty; elsewhere not used
  std::string reasoning_content;             // assistant
  std::vector<ToolCall> tool_calls;          // assistant
  std::string tool_call_id;                  // tool
  ChatTask task = ChatTask::kNone;           // user, assistant
  bool wo_eos = false;                       // assistant: leaves EOS off, so that the model continues this message
  std::vector<std::string> tools;            // system, developer: JSON text of each tool's "function" object
  std::string response_format;               // system, developer: JSON text; "" where there is none
};

struct ChatRequest {
  std::vector<Message> messages;
  // Of the whole request: they go to the first message if that is a system message, else to an empty one put
  // in front.
  std::vector<std::string> tools;
  std::string response_format;
  bool thinking = false;
  ReasoningEffort effort = ReasoningEffort::kDefault;
  // Thinking mode leaves out the reasoning (and developer messages) before the last user turn. Tools anywhere
  // in the request switch this off.
  bool drop_thinking = true;
  bool add_bos = true;
};

// Reads
//   {"messages": [...], "tools": [...], "response_format": {...}, "thinking": true, "effort": "max",
//    "drop_thinking": true, "add_default_bos_token": true}
// Only "messages" is required; thinking is off by default. "enable_thinking" and "reasoning_effort" are other
// names of "thinking" and "effort" (reasoning_effort "none" turns thinking off); {"type": "enabled"} is read
// as true. A message's content may be null, a string or a list of parts, joined by "\n\n"; the arguments of a
// call may be JSON text or an object; "prefix": true is another name of "wo_eos". Fields that do not concern
// the prompt (model, temperature, ...) are ignored. Errors: kInvalidArgument, naming the field.
Result<ChatRequest> ParseChatRequest(std::string_view json);

// What ParseChatRequest reads as the same request, a message a line; broken UTF-8 becomes U+FFFD.
std::string ChatRequestToJson(const ChatRequest& request);

// Errors: kInvalidArgument (an effort that the dialect does not know, an empty developer message, arguments
// that are valid JSON but no object, a field where its role cannot have it), naming the message.
Result<std::string> RenderPrompt(const ChatRequest& request, ChatDialect dialect);

// A prompt that tells what of it came with the request: contents, reasoning, calls, schemas. The rest is the encoder's
// own, and only there does the format need its special tokens.
struct RenderedPrompt {
  std::string text;
  std::vector<TextRange> given;  // in order; each in UTF-8 as it was given
};
// Errors as of RenderPrompt.
Result<RenderedPrompt> RenderPromptWithPlaces(const ChatRequest& request, ChatDialect dialect);

// What spellings of special tokens in the given parts of a prompt are: special tokens, as in the official encoder,
// whose ids this keeps; or ordinary text, so that no content can end a turn, open one or forge a call.
enum class SpecialTokensInContent { kOfficial, kText };
EncodeOptions EncodeOptionsOf(const RenderedPrompt& prompt, SpecialTokensInContent in_content);

}  // namespace dsv4
