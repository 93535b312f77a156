// Output parsing: splits the text that the model writes into reasoning, content and tool calls.
//
// The tolerant parser (OutputParser, ParseOutput) accepts every text. Rules:
//  1. The text starts inside the reasoning (thinking) or inside the content. Removed: leading newlines of both, a
//     "<think>" at the start of the reasoning, a "</think>" at the start of the content, and the newlines directly
//     before the "</think>" that ends the reasoning. Any later "</think>" is text.
//  2. A block of calls begins at a call's tag ("<｜DSML｜invoke name=...") or at the wrapper before it, also inside the
//     reasoning. Newlines before it are removed; none are required. The wrapper may be misspelt. V4.1's spelling
//     ("<｜DSML｜ calls>", "<｜DSML｜ invoke ...") is accepted. The marker alone, and tags that no call follows, are text.
//  3. A call is returned with all its arguments or not at all. Calls are held back until their block is complete. If
//     one call of the block is malformed, the whole block is text, and the rest of the reply too (inside the reasoning:
//     the rest of the reasoning).
//  4. Accepted in a call: attributes in any order, single quotes, "True", a further attribute "type", no attribute
//     "string", a JSON object in place of the parameters, white space between tags, no end of the last call or of the
//     block before the next one, no end of the block.
//  5. Malformed: text between tags, a tag inside a value, a key twice, a name or quote that is missing, a text that
//     ends inside a call.
//  6. After the block only newlines and another block count; other text is removed. A tag in that text shows that a
//     value contained an end of a block: then all is text. So is a block in a code fence that ends after it.
//  7. A value with string="true" becomes a JSON string, without trimming or unescaping. A value with string="false",
//     or without the attribute, keeps its text if it is valid JSON, and otherwise becomes a JSON string. If the
//     parameter's types are known, a text that is a value of one of them becomes this value.
//  8. The text of EOS ends the output anywhere.
//  9. The beginning of a tag is held back until the tag is complete or impossible; at the end of the text it is text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/chat.h"
#include "dsv4/export.h"
#include "dsv4/status.h"

namespace dsv4 {

struct ParsedMessage {
  std::string reasoning_content;
  std::string content;
  std::vector<ToolCall> tool_calls;  // arguments: JSON text of an object; ids are empty
  bool cut_off = false;              // the text ended inside a tool call
};

struct OutputDelta {
  enum class Kind : uint8_t {
    kReasoning,          // text: more reasoning
    kContent,            // text: more content
    kToolCallBegin,      // index; text: the name
    kToolCallArguments,  // index; text: more of the arguments' JSON text
    kToolCallEnd,        // index; the arguments are complete
  };
  Kind kind;
  int index = -1;  // of the tool call, from 0
  std::string text;
};

// The name of a kind in the C API and in Python.
constexpr const char* NameOf(OutputDelta::Kind kind) {
  constexpr const char* kNames[] = {"reasoning", "content", "call", "arguments", "call_end"};
  return kNames[static_cast<size_t>(kind)];
}

// JSON types, one bit each.
enum JsonTypes : uint8_t {
  kAnyType = 0,  // nothing is known
  kStringType = 1,
  kIntegerType = 2,
  kNumberType = 4,
  kBooleanType = 8,
  kNullType = 16,
  kObjectType = 32,
  kArrayType = 64,
};

// A tool as the parser knows it.
struct ToolSignature {
  struct Parameter {
    std::string name;
    uint8_t types = kAnyType;  // JsonTypes
    bool required = false;
  };
  std::string name;
  std::vector<Parameter> parameters;
};

struct OutputParserOptions {
  bool thinking = false;
  bool calls = true;      // false: the text of a call is text
  bool one_call = false;  // the output ends after the first call
  bool eos_text = true;   // the text of EOS ends the output; false: the caller knows the end by its token
  // "</think>" in the text ends the reasoning. False: only EndReasoning does, and "</think>" is text.
  bool think_text = true;
  std::shared_ptr<const std::vector<ToolSignature>> tools = nullptr;  // of the request; null: none is known
};

// Incremental parser. The bytes may be split anywhere, even inside a character. The joined texts of the deltas do not
// depend on the splits. If every piece ends with a complete character, every delta does too.
class DSV4_API OutputParser {
 public:
  explicit OutputParser(bool thinking);
  explicit OutputParser(OutputParserOptions options);
  ~OutputParser();
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;

  std::vector<OutputDelta> Push(std::string_view bytes);

  // Ends the reasoning here, as "</think>" would. No effect elsewhere.
  std::vector<OutputDelta> EndReasoning();

  // A grammar rules out malformed calls in the following text: the pieces of arguments are returned at once.
  void StreamCalls();

  // Ends the text and returns what was held back. The parser accepts nothing afterwards.
  std::vector<OutputDelta> Finish();

  // Returns true if later text has no effect (after the end of the tool calls, or EOS). The caller may stop generating.
  bool done() const;

  // Returns true inside the content. Stop strings of the user apply only there.
  bool in_content() const;

  // Returns true while a block of calls is being read, which may still turn out to be text.
  bool in_calls() const;

  // Returns true if the text so far ends where the model was trained to begin its calls: after an empty line or at the
  // start, and then "<".
  bool at_call() const;

  // Returns the message so far: all deltas joined.
  const ParsedMessage& message() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Parses a whole text with OutputParser.
DSV4_API ParsedMessage ParseOutput(std::string_view text, bool thinking);

// Strict parser, as in the official encoder, to check the format of a model's output. Requires that `text` ends with
// EOS, that tags are exactly as in training, and that there are no repeated keys and no stray markers. Trims nothing.
// Does not check values with string="false". Error: kInvalidArgument, which states what was expected and at which byte.
DSV4_API Result<ParsedMessage> ParseOutputStrict(std::string_view text, bool thinking);

}  // namespace dsv4
