// dsv4 encode: a conversation in OpenAI form to the exact prompt text.
#include <string>

#include "dsv4/chat.h"
#include "dsv4/json_text.h"
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
  const auto render = [&](const std::string& json) -> Result<std::string> {
    DSV4_ASSIGN_OR_RETURN(const ChatRequest request, ParseChatRequest(json));
    return RenderPrompt(request, dialect);
  };
  if (options.jsonl) {
    return ForEachLine([&](const std::string& line) -> Result<std::string> {
      DSV4_ASSIGN_OR_RETURN(const std::string prompt, render(line));
      return JsonQuote(prompt);
    });
  }
  Print(Must(render(ReadStdin())));
  return kExitDone;
}

}  // namespace dsv4::cli
