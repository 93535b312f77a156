// JSON text at the edges: what `tokenize`, `detokenize`, `encode` and `parse` read and print with --jsonl.
// Everything written is on one line, non-ASCII characters raw, broken UTF-8 replaced by U+FFFD.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/output_parser.h"
#include "dsv4/status.h"
#include "dsv4/types.h"

namespace dsv4 {

// "text" with quotes and escapes.
std::string JsonQuote(std::string_view text);

// One JSON string. Error: kInvalidArgument.
Result<std::string> ParseJsonString(std::string_view json);

// [1, 2, 3]
std::string TokenIdsToJson(std::span<const TokenId> ids);

// A JSON array of integers. Error: kInvalidArgument, naming the element.
Result<std::vector<TokenId>> ParseTokenIdsJson(std::string_view json);

// Integers separated by white space or commas, or a JSON array of them (--token-ids F). Error: kInvalidArgument,
// quoting the piece that is not a token id. Whether the ids are in a vocabulary is the caller's to check.
Result<std::vector<TokenId>> ParseTokenIdList(std::string_view text);

// {"reasoning_content": "...", "content": "...", "tool_calls": [{"type": "function", "function": {"name":
// "...", "arguments": "..."}}]}; a call with an id has "id" first.
std::string MessageToJson(const ParsedMessage& message);

// {"completion": "...", "thinking": true}: one line of `parse --jsonl`; thinking is off where it is not
// given.
struct CompletionLine {
  std::string completion;
  bool thinking = false;
};
// Error: kInvalidArgument, naming the field.
Result<CompletionLine> ParseCompletionLine(std::string_view json);

}  // namespace dsv4
