// dsv4 perplexity: how well the model predicts a text.
//
// The text is cut into windows that do not overlap; each starts with an empty context (and BOS, which is not
// predicted), so that every token of the text is predicted exactly once.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dsv4/engine.h"
#include "dsv4/session.h"
#include "dsv4/tokenizer.h"
#include "errors.h"
#include "format.h"
#include "io.h"
#include "model.h"
#include "options.h"
#include "progress.h"

namespace dsv4::cli {

namespace {

// -ln of the probability that a row of logits gives to `id`.
double NegativeLogLikelihood(std::span<const float> logits, TokenId id) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum) - static_cast<double>(logits[static_cast<size_t>(id)]);
}

}  // namespace

int RunPerplexity(const PerplexityOptions& options) {
  EngineOptions model = options.model;
  model.model_dir = FindModelDir(model.model_dir);
  const bool from_ids = !options.token_ids_file.empty();
  const std::string name = from_ids ? options.token_ids_file : options.text_file;
  std::vector<TokenId> ids;
  if (from_ids) {
    ids = ReadTokenIds(name);
  } else {
    const std::unique_ptr<Tokenizer> tokenizer = Must(Tokenizer::Load(model.model_dir));
    const std::string text = ReadInput(name);
    NoteInvalidUtf8(text, name);
    // Spellings of added tokens in a text to be measured are text.
    ids = tokenizer->Encode(text, {.recognize_added_tokens = false});
  }

  ProgressLine progress;
  const std::unique_ptr<Engine> engine = LoadEngine(model, progress);
  const ModelInfo& info = engine->info();
  CheckTokenIds(ids, info.vocab_size, name);
  const bool with_bos = !options.no_bos && info.bos_token_id >= 0;
  const auto num_tokens = static_cast<int64_t>(ids.size());
  if (num_tokens < (with_bos ? 1 : 2)) throw RunError(name + " holds too little text to measure");
  const int64_t window = std::min(options.window, info.max_context);
  const int64_t text_per_window = with_bos ? window - 1 : window;
  if (text_per_window < 1)
    throw RunError("a context of " + std::to_string(window) + " leaves no token to predict");

  // Rows of logits of one slice are in memory at a time; results do not depend on how a window is cut.
  const int64_t slice = model.prefill_chunk > 0 ? std::min<int64_t>(model.prefill_chunk, 256) : 256;
  const std::unique_ptr<Session> session = Must(engine->NewSession());
  std::vector<float> logits;
  double sum = 0;
  int64_t predicted = 0;
  int64_t windows = 0;
  for (int64_t begin = 0; begin < num_tokens; begin += text_per_window) {
    const int64_t end = std::min(begin + text_per_window, num_tokens);
    std::vector<TokenId> tokens;
    if (with_bos) tokens.push_back(info.bos_token_id);
    tokens.insert(tokens.end(), ids.begin() + begin, ids.begin() + end);
    if (tokens.size() < 2) continue;  // without BOS, a last window of one token
    session->Reset();
    ++windows;
    // The last token predicts nothing.
    const std::span<const TokenId> inputs = std::span<const TokenId>(tokens).first(tokens.size() - 1);
    for (size_t at = 0; at < inputs.size(); at += static_cast<size_t>(slice)) {
      if (Interrupted()) throw QuietExit{kExitInterrupted};
      const auto part = inputs.subspan(at, std::min(static_cast<size_t>(slice), inputs.size() - at));
      Must(session->Append(part, LogitRows::kAll, &logits));
      const auto vocab_size = static_cast<size_t>(info.vocab_size);
      for (size_t i = 0; i < part.size(); ++i) {
        sum += NegativeLogLikelihood(std::span<const float>(logits).subspan(i * vocab_size, vocab_size),
                                     tokens[at + i + 1]);
        ++predicted;
      }
      progress.Update("measuring", begin + static_cast<int64_t>(at + part.size()), num_tokens,
                      "perplexity so far " + FormatFixed(std::exp(sum / static_cast<double>(predicted)), 3));
    }
  }
  progress.Clear();

  const double mean = sum / static_cast<double>(predicted);
  if (std::isnan(mean)) throw RunError("the model's logits hold NaN; its weights are damaged");
  if (options.json) {
    const nlohmann::ordered_json j = {{"mean_nll", mean},        {"perplexity", std::exp(mean)},
                                      {"tokens", predicted},     {"windows", windows},
                                      {"window_tokens", window}, {"bos", with_bos}};
    Print(j.dump() + "\n");
  } else {
    Print("mean negative log-likelihood  " + FormatFixed(mean, 6) + " nats per token\n" +
          "perplexity                    " + FormatFixed(std::exp(mean), 4) + "\n" +
          "tokens                        " + FormatCount(predicted) + " in " + FormatCount(windows) +
          " windows of up to " + FormatCount(window) + "\n");
  }
  return kExitDone;
}

}  // namespace dsv4::cli
