// dsv4 tokenize and dsv4 detokenize: convert text to ids and back, from stdin to stdout.
#include <string>
#include <vector>

#include "dsv4/json_text.h"
#include "dsv4/tokenizer.h"
#include "errors.h"
#include "format.h"
#include "io.h"
#include "model.h"
#include "options.h"

namespace dsv4::cli {

int RunTokenize(const TokenizeOptions& options) {
  const auto tokenizer = Must(Tokenizer::Load(FindModelDir(options.model_dir)));
  const EncodeOptions encode = {.recognize_added_tokens = !options.plain};
  if (options.jsonl) {
    return ForEachLine([&](const std::string& line) -> Result<std::string> {
      DSV4_ASSIGN_OR_RETURN(const std::string text, ParseJsonString(line));
      return TokenIdsToJson(tokenizer->Encode(text, encode));
    });
  }
  const std::string text = ReadStdin();
  NoteInvalidUtf8(text, "the text");
  Print(FormatIds(tokenizer->Encode(text, encode)) + "\n");
  return kExitDone;
}

int RunDetokenize(const TokenizeOptions& options) {
  const auto tokenizer = Must(Tokenizer::Load(FindModelDir(options.model_dir)));
  const DecodeOptions decode = {.skip_special = options.skip_special};
  if (options.jsonl) {
    return ForEachLine([&](const std::string& line) -> Result<std::string> {
      DSV4_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, ParseTokenIdsJson(line));
      DSV4_ASSIGN_OR_RETURN(const std::string text, tokenizer->Decode(ids, decode));
      return JsonQuote(text);
    });
  }
  Print(Must(tokenizer->Decode(ReadTokenIds("-"), decode)));
  return kExitDone;
}

}  // namespace dsv4::cli
