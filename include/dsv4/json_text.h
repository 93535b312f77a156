// JSON text that the commands `tokenize`, `detokenize`, `encode` and `parse` read and write with --jsonl. Every
// function that writes JSON returns one line, with non-ASCII characters unescaped and invalid UTF-8 replaced by U+FFFD.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/export.h"
#include "dsv4/output_parser.h"
#include "dsv4/status.h"
#include "dsv4/types.h"

namespace dsv4 {

// Returns `text` as a JSON string, with quotes and escapes.
DSV4_API std::string JsonQuote(std::string_view text);

// Parses one JSON string. Error: kInvalidArgument.
DSV4_API Result<std::string> ParseJsonString(std::string_view json);

// Returns "[1, 2, 3]".
DSV4_API std::string TokenIdsToJson(std::span<const TokenId> ids);

// Parses a JSON array of integers. Error: kInvalidArgument, which names the element.
DSV4_API Result<std::vector<TokenId>> ParseTokenIdsJson(std::string_view json);

// Parses integers that are separated by white space or commas, or a JSON array of integers (--token-ids F). Does not
// check that the ids are in a vocabulary. Error: kInvalidArgument, which quotes the text that is not a token id.
DSV4_API Result<std::vector<TokenId>> ParseTokenIdList(std::string_view text);

// Returns {"reasoning_content": "...", "content": "...", "tool_calls": [{"type": "function", "function": {"name":
// "...", "arguments": "..."}}]}. A call with an id begins with "id".
DSV4_API std::string MessageToJson(const ParsedMessage& message);

// One input line of `parse --jsonl`: {"completion": "...", "thinking": true}.
struct CompletionLine {
  std::string completion;
  bool thinking = false;
};
// Error: kInvalidArgument, which names the field.
DSV4_API Result<CompletionLine> ParseCompletionLine(std::string_view json);

}  // namespace dsv4
