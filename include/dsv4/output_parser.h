// Output parsing: the text that the model writes to reasoning, content and tool calls.
//
// The tolerant parser (OutputParser, ParseOutput) accepts every text; where it has to choose it follows the
// streaming recogniser of DeepSeek's own serving layer, and public servers where that one is silent:
//  1. The text starts inside the reasoning (thinking) or inside the content. Leading newlines of both are
//     dropped, and so is a "<think>" at the start of the reasoning. The newlines right before "</think>" go
//     with it.
//  2. "<｜DSML｜tool_calls>", or a call without that frame, starts the tool calls, in the reasoning too. The
//     newlines before it go with it; none are required. V4.1's spelling ("<｜DSML｜ calls>", "<｜DSML｜ invoke
//     ...") is accepted. Other uses of the marker, such as V3.2's function_calls, stay text.
//  3. A stray "</think>" in the content is dropped. Without any "</think>" all is reasoning.
//  4. After the end of the tool calls everything is dropped. The text of EOS ends the output wherever it
//     stands.
//  5. Between tags of the block everything is skipped. A call ends at "</｜DSML｜invoke>", at the end of the
//     block, at the next call or at the end of the text; a value at any "</｜DSML｜" and at the next parameter
//     or call. A call with an empty name is skipped.
//  6. Values of string="true" become JSON strings as they stand, without trimming or unescaping. Values of
//     string="false" keep their text if it is valid JSON and become JSON strings otherwise; without the
//     attribute it is the same. Keys are not checked: a repeated key is repeated in the arguments.
//  7. A beginning of a tag is held back until it is decided; at the end of the text it is text.
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
  std::vector<ToolCall> tool_calls;  // arguments: JSON text of an object; ids are left empty
  bool cut_off = false;              // the text ended inside a tool call, whose arguments the parser has closed
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

// Incremental: feed bytes, split anywhere (in the middle of a character, too). The deltas' texts joined do
// not depend on the splits. If every piece fed ends with a whole character, so does every delta.
class OutputParser {
 public:
  explicit OutputParser(bool thinking);
  ~OutputParser();
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;

  std::vector<OutputDelta> Push(std::string_view bytes);

  // The end of the text: what was held back. Nothing may follow.
  std::vector<OutputDelta> Finish();

  // True once nothing more can come (end of the tool calls, or EOS): the caller may stop generating.
  bool done() const;

  // True inside the content: the only place where stop strings of the user apply.
  bool in_content() const;

  // Everything so far, put together.
  const ParsedMessage& message() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// OutputParser on a whole text.
ParsedMessage ParseOutput(std::string_view text, bool thinking);

// The official encoder's own parser, for checking a model's form: `text` ends with EOS, tags stand exactly as
// trained, no repeated keys, no stray markers, nothing trimmed. Values of string="false" are not checked.
// Errors: kInvalidArgument, saying what was expected and at which byte.
Result<ParsedMessage> ParseOutputStrict(std::string_view text, bool thinking);

}  // namespace dsv4
