// Reads and checks tokenizer.json and tokenizer_config.json. Anything that the tokenizer's code does not implement is
// refused, with the name of its field.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsv4/status.h"
#include "dsv4/types.h"

namespace dsv4 {

struct AddedToken {
  TokenId id;
  std::string content;
  bool special;
  bool normalized;  // matched in the second pass
};

struct TokenizerFile {
  std::vector<AddedToken> added_tokens;
  std::vector<std::pair<std::string, TokenId>> vocab;       // in the byte-level alphabet; keys differ
  std::vector<std::pair<std::string, std::string>> merges;  // in the byte-level alphabet; rank is the index
};

// Checks each field alone. The caller checks what several fields must agree on (ids, merges).
Result<TokenizerFile> ReadTokenizerFile(std::string_view json);

struct TokenizerConfig {
  std::string bos_token;  // "": none
  std::string eos_token;
};
Result<TokenizerConfig> ReadTokenizerConfig(std::string_view json);

}  // namespace dsv4
