// Output parsing: splits the text that the model writes into reasoning, content and tool calls.
//
// The tolerant parser (OutputParser, ParseOutput) accepts every text. Ambiguous text is parsed as by the streaming
// recogniser of DeepSeek's own serving layer, or as by public servers if that recogniser defines nothing. Rules:
//  1. The text starts inside the reasoning (thinking) or inside the content. Removed: leading newlines of both, a
//     "<think>" at the start of the reasoning, and the newlines directly before "</think>".
//  2. "<｜DSML｜tool_calls>", or a call without that frame, begins the tool calls, also inside the reasoning. Newlines
//     before it are removed; none are required. V4.1's spelling ("<｜DSML｜ calls>", "<｜DSML｜ invoke ...") is accepted.
//     Other uses of the marker, such as V3.2's function_calls, stay text.
//  3. A stray "</think>" in the content is removed. Without any "</think>" the whole text is reasoning.
//  4. Everything after the end of the tool calls is removed. The text of EOS ends the output anywhere.
//  5. Text between the tags of the block is skipped. A call ends at "</｜DSML｜invoke>", at the end of the block, at the
//     next call, or at the end of the text. A value ends at any "</｜DSML｜" and at the next parameter or call. A call
//     with an empty name is skipped.
//  6. A value with string="true" becomes a JSON string, without trimming or unescaping. A value with string="false", or
//     without the attribute, keeps its text if it is valid JSON, and otherwise becomes a JSON string. Keys are not
//     checked: a repeated key is repeated in the arguments.
//  7. The beginning of a tag is held back until the tag is complete or impossible; at the end of the text it is text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/chat.h"
#include "dsv4/status.h"

namespace dsv4 {

struct ParsedMessage {
  std::string reasoning_content;
  std::string content;
  std::vector<ToolCall> tool_calls;  // arguments: JSON text of an object; ids are empty
  bool cut_off = false;              // the text ended inside a tool call; the parser has closed its arguments
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

// Incremental parser. The bytes may be split anywhere, even inside a character. The joined texts of the deltas do not
// depend on the splits. If every piece ends with a complete character, every delta does too.
class OutputParser {
 public:
  explicit OutputParser(bool thinking);
  ~OutputParser();
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;

  std::vector<OutputDelta> Push(std::string_view bytes);

  // Ends the text and returns what was held back. The parser accepts nothing afterwards.
  std::vector<OutputDelta> Finish();

  // Returns true if later text has no effect (after the end of the tool calls, or EOS). The caller may stop generating.
  bool done() const;

  // Returns true inside the content. Stop strings of the user apply only there.
  bool in_content() const;

  // Returns the message so far: all deltas joined.
  const ParsedMessage& message() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Parses a whole text with OutputParser.
ParsedMessage ParseOutput(std::string_view text, bool thinking);

// Strict parser, as in the official encoder, to check the format of a model's output. Requires that `text` ends with
// EOS, that tags are exactly as in training, and that there are no repeated keys and no stray markers. Trims nothing.
// Does not check values with string="false". Error: kInvalidArgument, which states what was expected and at which byte.
Result<ParsedMessage> ParseOutputStrict(std::string_view text, bool thinking);

}  // namespace dsv4
