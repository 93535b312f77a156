// dsv4 perplexity: measures how well the model predicts a text.
//
// The text is divided into windows that do not overlap. Each starts with an empty context and BOS, which is not
// predicted. So every token of the text is predicted exactly once.
#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dsv4/engine.h"
#include "dsv4/inspect.h"
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

constexpr int64_t kUsualWindow = 2048;

// Returns -ln(p), where p is the probability of `id` in a row of logits.
double NegativeLogLikelihood(std::span<const float> logits, TokenId id) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum) - static_cast<double>(logits[static_cast<size_t>(id)]);
}

std::vector<TokenId> ReadIds(const PerplexityOptions& options, const std::string& model_dir) {
  if (!options.token_ids_file.empty()) return ReadTokenIds(options.token_ids_file);
  const std::unique_ptr<Tokenizer> tokenizer = Must(Tokenizer::Load(model_dir));
  const std::string text = ReadInput(options.text_file);
  NoteInvalidUtf8(text, options.text_file);
  // In the measured text, the text of an added token is ordinary text.
  return tokenizer->Encode(text, {.recognize_added_tokens = false});
}

struct Measured {
  double sum = 0;  // of negative log-likelihoods
  int64_t predicted = 0, windows = 0;
};

// Adds a window to `m`, in slices; the result does not depend on their size. Calls `report` with the number of finished
// tokens.
template <typename Report>
void MeasureWindow(Session& session, std::span<const TokenId> tokens, size_t vocab_size, size_t slice, Measured* m,
                   Report report) {
  session.Reset();
  ++m->windows;
  std::vector<float> logits;                                                // of one slice
  const std::span<const TokenId> inputs = tokens.first(tokens.size() - 1);  // the last token predicts nothing
  for (size_t at = 0; at < inputs.size(); at += slice) {
    StopIfInterrupted();
    const auto part = inputs.subspan(at, std::min(slice, inputs.size() - at));
    Must(session.Append(part, LogitRows::kAll, &logits));
    for (size_t i = 0; i < part.size(); ++i) {
      m->sum += NegativeLogLikelihood(std::span<const float>(logits).subspan(i * vocab_size, vocab_size),
                                      tokens[at + i + 1]);
      ++m->predicted;
    }
    report(static_cast<int64_t>(at + part.size()));
  }
}

void ReportPerplexity(const PerplexityOptions& options, const Measured& m, int64_t window, bool with_bos) {
  const double mean = m.sum / static_cast<double>(m.predicted);
  if (std::isnan(mean))
    throw RunError("the model's logits contain NaN; its weights are damaged, load another checkpoint");
  if (options.json) {
    const nlohmann::ordered_json j = {{"mean_nll", mean},     {"perplexity", std::exp(mean)}, {"tokens", m.predicted},
                                      {"windows", m.windows}, {"window_tokens", window},      {"bos", with_bos}};
    Print(j.dump() + "\n");
    return;
  }
  Print("mean negative log-likelihood  " + FormatFixed(mean, 6) + " nats per token\n" +
        "perplexity                    " + FormatFixed(std::exp(mean), 4) + "\n" + "tokens                        " +
        FormatCount(m.predicted) + " in " + FormatCount(m.windows) + " windows of up to " + FormatCount(window) + "\n");
}

}  // namespace

int RunPerplexity(const PerplexityOptions& options) {
  EngineOptions model = options.model;
  model.model_dir = FindModelDir(model.model_dir);
  const std::vector<TokenId> ids = ReadIds(options, model.model_dir);
  const std::string name = options.token_ids_file.empty() ? options.text_file : options.token_ids_file;

  if (options.window > 0) {  // before the weights are loaded
    EngineOptions limited = model;
    limited.max_context = options.window;
    Must(Inspect(limited));
  }

  ProgressLine progress;
  const std::unique_ptr<Engine> engine = LoadEngine(model, progress);
  const ModelInfo& info = engine->info();
  CheckTokenIds(ids, info.vocab_size, name);
  const bool with_bos = !options.no_bos && info.bos_token_id >= 0;
  const auto num_tokens = static_cast<int64_t>(ids.size());
  if (num_tokens < (with_bos ? 1 : 2)) throw RunError(name + " is too short to measure; give a longer text");
  const int64_t window = options.window > 0 ? options.window : std::min(kUsualWindow, info.max_context);
  const int64_t text_per_window = with_bos ? window - 1 : window;
  if (text_per_window < 1)
    throw RunError("a context of " + std::to_string(window) + " leaves no token to predict; raise --ctx");

  const int64_t slice = model.prefill_chunk > 0 ? std::min<int64_t>(model.prefill_chunk, 256) : 256;
  const std::unique_ptr<Session> session = Must(engine->NewSession());
  Measured measured;
  for (int64_t begin = 0; begin < num_tokens; begin += text_per_window) {
    const int64_t end = std::min(begin + text_per_window, num_tokens);
    std::vector<TokenId> tokens(ids.begin() + begin, ids.begin() + end);
    if (with_bos) tokens.insert(tokens.begin(), info.bos_token_id);
    if (tokens.size() < 2) continue;  // without BOS, a last window of one token
    MeasureWindow(*session, tokens, static_cast<size_t>(info.vocab_size), static_cast<size_t>(slice), &measured,
                  [&](int64_t taken) {
                    const double mean = measured.sum / static_cast<double>(measured.predicted);
                    progress.Update("measuring", begin + taken, num_tokens,
                                    "perplexity so far " + FormatFixed(std::exp(mean), 3));
                  });
  }
  progress.Clear();
  ReportPerplexity(options, measured, window, with_bos);
  return kExitDone;
}

}  // namespace dsv4::cli
