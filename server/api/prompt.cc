#include "server/api/prompt.h"

#include <utility>

namespace dsv4::server {

namespace {

using Ids = std::vector<TokenId>;

constexpr size_t kMaxSuffixes = size_t{32} << 20;  // bytes of a suffix, counted once per prompt

// DeepSeek's form of a prompt with a hole: the model writes the text of the hole.
constexpr std::string_view kFimBegin = "<｜fim▁begin｜>", kFimHole = "<｜fim▁hole｜>", kFimEnd = "<｜fim▁end｜>";

}  // namespace

Ids ReadIds(const Api& api, const Json& list, const std::string& path) {
  Ids ids;
  ids.reserve(list.size());
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= api.model.vocab_size) {
      Refuse(path, path + "[" + std::to_string(ids.size()) + "] is " + Dump(id) + "; expected a token id from 0 to " +
                       std::to_string(api.model.vocab_size - 1));
    }
    ids.push_back(static_cast<TokenId>(id.get<int64_t>()));
  }
  return ids;
}

void RefuseCompletions(int64_t n) {
  Refuse("prompt", "a request may have at most " + std::to_string(kMaxCompletions) + " completions; this one has " +
                       std::to_string(n));
}

PromptReader::PromptReader(const Api& api, std::string tenant, const Fields& fields, bool remembered)
    : api_(api),
      remembered_(remembered),
      tenant_(std::move(tenant)),
      suffix_(fields.Text("suffix").value_or("")),
      add_special_(fields.Bool("add_special_tokens").value_or(true)) {
  if (suffix_.empty()) return;
  for (const std::string_view mark : {kFimBegin, kFimHole, kFimEnd}) {
    if (!api.tokenizer.FindToken(mark)) {
      Refuse("suffix", "suffix is not supported: this model's tokenizer has no token " + std::string(mark) +
                           "; send the prompt alone");
    }
  }
}

std::vector<CompletionPrompt> PromptReader::Read(const Json* prompt) const {
  if (prompt == nullptr) Refuse("prompt", "prompt is missing");
  if (!prompt->is_string() && !prompt->is_array())
    Refuse("prompt", "prompt must be a string, an array of token ids, or an array of these");
  const bool one = prompt->is_string() || (!prompt->empty() && (*prompt)[0].is_number());
  std::vector<CompletionPrompt> prompts;
  if (one) {
    prompts.push_back(ReadOne(*prompt, "prompt"));
  } else {
    if (remembered_ && static_cast<int64_t>(prompt->size()) > kMaxCompletions)
      RefuseCompletions(static_cast<int64_t>(prompt->size()));
    if (prompt->size() * suffix_.size() > kMaxSuffixes) {
      Refuse("suffix", "suffix would be added to prompts as more than " + std::to_string(kMaxSuffixes) +
                           " bytes; send fewer prompts or a shorter suffix");
    }
    for (const Json& item : *prompt) prompts.push_back(ReadOne(item, "prompt[" + std::to_string(prompts.size()) + "]"));
  }
  if (prompts.empty()) Refuse("prompt", "prompt is an empty list");
  return prompts;
}

CompletionPrompt PromptReader::ReadOne(const Json& prompt, const std::string& path) const {
  if (prompt.is_string()) return Encode(prompt.get_ref<const std::string&>());
  if (!prompt.is_array()) Refuse(path, path + " must be a string or an array of token ids");
  if (!suffix_.empty()) Refuse("suffix", "suffix needs a prompt that is a text, and " + path + " has token ids");
  return {.ids = ReadIds(api_, prompt, path)};
}

// Special tokens in the text are recognized, because it is a whole prompt; but not around a hole.
CompletionPrompt PromptReader::Encode(const std::string& text) const {
  const TokenId bos = api_.model.bos_token_id;
  const std::string_view spelling = api_.tokenizer.TokenBytes(bos);
  const bool add = add_special_ && !spelling.empty() && !(suffix_.empty() && text.starts_with(spelling));
  RenderedPrompt prompt{.text = add ? std::string(spelling) : ""};
  CompletionPrompt result;
  if (suffix_.empty()) {
    prompt.text += text;
  } else {
    result.before_hole = AddAfter(kFimBegin, text, &prompt);
    AddAfter(kFimHole, suffix_, &prompt);
    prompt.text += kFimEnd;
  }
  result.text = std::make_shared<const RenderedPrompt>(std::move(prompt));
  const EncodeOptions options = EncodeOptionsOf(*result.text, api_.options.special_tokens_in_content);
  result.ids = remembered_ ? api_.scheduler.EncodePrompt(tenant_, *result.text)
                           : api_.tokenizer.Encode(result.text->text, options);
  return result;
}

// Adds a mark and the client's text after it, and returns the place of the text.
TextRange PromptReader::AddAfter(std::string_view mark, const std::string& text, RenderedPrompt* prompt) {
  prompt->text += mark;
  const TextRange range{prompt->text.size(), prompt->text.size() + text.size()};
  prompt->text += text;
  if (!text.empty()) prompt->content_ranges.push_back(range);
  return range;
}

}  // namespace dsv4::server
