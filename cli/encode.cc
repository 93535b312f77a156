// dsv4 encode: converts a conversation in OpenAI form to the exact prompt text.
#include <memory>
#include <string>
#include <utility>

#include "dsv4/chat.h"
#include "dsv4/json_text.h"
#include "dsv4/tokenizer.h"
#include "errors.h"
#include "io.h"
#include "model.h"
#include "options.h"

namespace dsv4::cli {

int RunEncode(const ChatEncodeOptions& options) {
  ChatDialect dialect = ChatDialect::kV4Preview;
  if (options.dialect) {
    dialect = *options.dialect;
  } else if (!options.model_dir.empty()) {
    dialect = DetectDialect(FindModelDir(options.model_dir));
  }
  std::unique_ptr<Tokenizer> tokenizer;
  if (options.ids) tokenizer = Must(Tokenizer::Load(FindModelDir(options.model_dir)));
  const auto encode = [&](const std::string& json, bool quote) -> Result<std::string> {
    DSV4_ASSIGN_OR_RETURN(const ChatRequest request, ParseChatRequest(json));
    DSV4_ASSIGN_OR_RETURN(RenderedPrompt prompt, options.as_served ? RenderServedPrompt(request, dialect)
                                                                   : RenderPromptWithRanges(request, dialect));
    if (tokenizer == nullptr) return quote ? JsonQuote(prompt.text) : std::move(prompt.text);
    std::string ids;
    for (const TokenId id : tokenizer->Encode(prompt.text, EncodeOptionsOf(prompt, options.in_content))) {
      ids += (ids.empty() ? "[" : ", ") + std::to_string(id);
    }
    return (ids.empty() ? "[" : ids) + "]" + (quote ? "" : "\n");
  };
  if (options.jsonl) return ForEachLine([&](const std::string& line) { return encode(line, /*quote=*/true); });
  Print(Must(encode(ReadStdin(), /*quote=*/false)));
  return kExitDone;
}

}  // namespace dsv4::cli
