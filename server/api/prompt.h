// The prompts of a body of /v1/completions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/api/api.h"

namespace dsv4::server {

inline constexpr int64_t kMaxCompletions = 1024;  // of one request

// Throws the ApiError of a request with more than kMaxCompletions.
[[noreturn]] void RefuseCompletions(int64_t n);

// Reads an array of token ids. Throws ApiError 400 that names the element.
std::vector<TokenId> ReadIds(const Api& api, const Json& list, const std::string& path);

// One prompt of a request: a text, which the server encodes, or ids.
struct CompletionPrompt {
  std::vector<TokenId> ids;
  std::shared_ptr<const RenderedPrompt> text = nullptr;
  TextRange before_hole = {};  // of `text`, with a suffix
};

class PromptReader {
 public:
  // `remembered`: texts of cached replies get the ids that the model wrote; otherwise the ids depend on the text alone.
  PromptReader(const Api& api, std::string tenant, const Fields& fields, bool remembered = true);

  // Reads a text, ids, or an array of either. Throws ApiError 400.
  std::vector<CompletionPrompt> Read(const Json* prompt) const;

 private:
  CompletionPrompt ReadOne(const Json& prompt, const std::string& path) const;
  CompletionPrompt Encode(const std::string& text) const;
  static TextRange AddAfter(std::string_view mark, const std::string& text, RenderedPrompt* prompt);

  const Api& api_;
  const bool remembered_;
  const std::string tenant_;
  const std::string suffix_;  // "": none
  const bool add_special_;
};

}  // namespace dsv4::server
