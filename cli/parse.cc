// dsv4 parse: converts the text of a completion to a message.
#include <string>

#include "dsv4/json_text.h"
#include "dsv4/output_parser.h"
#include "errors.h"
#include "io.h"
#include "options.h"

namespace dsv4::cli {

int RunParse(const ParseOptions& options) {
  if (options.jsonl) {
    return ForEachLine([&](const std::string& line) -> Result<std::string> {
      DSV4_ASSIGN_OR_RETURN(const CompletionLine input, ParseCompletionLine(line));
      return MessageToJson(ParseOutput(input.completion, input.thinking || options.thinking));
    });
  }
  Print(MessageToJson(ParseOutput(ReadStdin(), options.thinking)) + "\n");
  return kExitDone;
}

}  // namespace dsv4::cli
