// dsv4 logits: writes the logits after every token to a safetensors file.
#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dsv4/engine.h"
#include "dsv4/session.h"
#include "dsv4/tensor_file.h"
#include "errors.h"
#include "format.h"
#include "io.h"
#include "model.h"
#include "options.h"
#include "progress.h"

namespace dsv4::cli {

int RunLogits(const LogitsOptions& options) {
  EngineOptions model = options.model;
  model.model_dir = FindModelDir(model.model_dir);
  const std::string output_file = ResolveReplaceableFile(options.output_file);
  const std::vector<TokenId> ids = ReadTokenIds(options.token_ids_file);
  const auto num_tokens = static_cast<int64_t>(ids.size());
  if (ids.empty()) throw RunError(options.token_ids_file + " contains no token ids; give at least one");
  const int64_t decode_from = options.decode_from.value_or(num_tokens);
  if (decode_from > num_tokens) {
    throw UsageError("--decode-from is " + std::to_string(decode_from) + "; accepted: 0 to " +
                     std::to_string(num_tokens) + ", the number of tokens");
  }

  ProgressLine progress;
  const std::unique_ptr<Engine> engine = LoadEngine(model, progress);
  const int64_t vocab_size = engine->info().vocab_size;
  CheckTokenIds(ids, vocab_size, options.token_ids_file);
  const int64_t context = engine->info().max_context;  // checked before hours of work
  if (num_tokens > context) {
    throw RunError(options.token_ids_file + " has " + FormatCount(num_tokens) + " tokens, more than the context of " +
                   FormatCount(context) + "; shorten it or raise --ctx");
  }
  const std::unique_ptr<Session> session = Must(engine->NewSession());

  const std::span<const TokenId> all(ids);
  std::vector<float> logits;
  if (decode_from > 0) {
    Must(session->Append(all.first(static_cast<size_t>(decode_from)), LogitRows::kAll, &logits, progress.Callback()));
  }
  logits.reserve(static_cast<size_t>(num_tokens * vocab_size));
  std::vector<float> row;
  for (int64_t t = decode_from; t < num_tokens; ++t) {
    StopIfInterrupted();
    Must(session->Append(all.subspan(static_cast<size_t>(t), 1), LogitRows::kLast, &row));
    logits.insert(logits.end(), row.begin(), row.end());
    progress.Update("decoding", t + 1, num_tokens,
                    std::to_string(t + 1) + " of " + std::to_string(num_tokens) + " tokens");
  }
  progress.Clear();
  StopIfInterrupted();

  const std::array<NamedTensor, 1> tensors = {
      NamedTensor{.name = "logits", .shape = {num_tokens, vocab_size}, .values = std::span<const float>(logits)}};
  Must(WriteTensorFile(output_file, tensors));
  if (options.json) {
    const nlohmann::ordered_json j = {{"output", options.output_file},
                                      {"tokens", num_tokens},
                                      {"vocab_size", vocab_size},
                                      {"prefilled", decode_from}};
    Print(j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  } else {
    PrintError("wrote logits [" + std::to_string(num_tokens) + ", " + std::to_string(vocab_size) + "] to " +
               options.output_file + "\n");
  }
  return kExitDone;
}

}  // namespace dsv4::cli
