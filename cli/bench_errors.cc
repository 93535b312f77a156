// dsv4 bench errors: the effect of rounding the inputs of matrix products (docs/dev/decisions/0008-regimes.md).
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "bench.h"
#include "dsv4/session.h"
#include "errors.h"
#include "format.h"
#include "model.h"

namespace dsv4::cli {

namespace {

constexpr int64_t kPromptsOfALength = 16;

struct Way {
  const char* name;
  ActivationDtype activation;
  PromptInputs inputs;
  bool as_decode_rows;
};
constexpr Way kExact = {"f32", ActivationDtype::kF32, PromptInputs::kTwo, false};
constexpr Way kWays[] = {{"decode rows", ActivationDtype::kNative, PromptInputs::kByLength, true},
                         {"two numbers", ActivationDtype::kNative, PromptInputs::kTwo, false},
                         {"one number", ActivationDtype::kNative, PromptInputs::kOne, false}};

// Returns the logits after each prompt. The prompts of a length are the same for every way.
std::vector<std::vector<float>> LastRows(const std::vector<int64_t>& prompts, EngineOptions model, const Way& way) {
  model.activation_dtype = way.activation;
  model.prompt_inputs = way.inputs;
  model.batch_invariant = way.as_decode_rows;
  ProgressLine progress;
  const std::unique_ptr<Engine> engine = LoadEngine(model, progress);
  std::vector<std::vector<float>> rows;
  for (const int64_t tokens : prompts) {
    for (int64_t i = 0; i < kPromptsOfALength; ++i) {
      const auto session = Must(engine->NewSession());
      rows.emplace_back();
      Must(session->Append(SomeTokens(tokens, static_cast<uint64_t>(100 * i + tokens), engine->info().vocab_size),
                           LogitRows::kLast, &rows.back()));
    }
  }
  return rows;
}

double RelativeRms(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - want[i], 2);
    size += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(error / size);
}

int64_t ArgMax(const std::vector<float>& row) { return std::max_element(row.begin(), row.end()) - row.begin(); }

}  // namespace

int BenchErrors(const BenchOptions& options, const EngineOptions& model) {
  const std::vector<int64_t> prompts = options.prompts.value_or(std::vector<int64_t>{64, 512, 2048});
  const std::vector<std::vector<float>> want = LastRows(prompts, model, kExact);
  for (const Way& way : kWays) {
    const std::vector<std::vector<float>> got = LastRows(prompts, model, way);
    size_t at = 0;
    for (const int64_t tokens : prompts) {
      std::vector<double> errors;
      int64_t agreed = 0;
      for (int64_t i = 0; i < kPromptsOfALength; ++i, ++at) {
        errors.push_back(RelativeRms(got[at], want[at]));
        agreed += ArgMax(got[at]) == ArgMax(want[at]) ? 1 : 0;
      }
      std::sort(errors.begin(), errors.end());
      const double median = errors[errors.size() / 2], largest = errors.back();
      Report(options,
             {{"phase", "error"},
              {"inputs", way.name},
              {"tokens", tokens},
              {"prompts", kPromptsOfALength},
              {"relative_rms_least", errors.front()},
              {"relative_rms_median", median},
              {"relative_rms_largest", largest},
              {"arg_max_agreed", agreed}},
             std::string(way.name) + ", prompt of " + std::to_string(tokens) + " tokens: relative RMS median " +
                 FormatFixed(100 * median, 4) + " %, maximum " + FormatFixed(100 * largest, 4) +
                 " %; same arg-max in " + std::to_string(agreed) + " of " + std::to_string(kPromptsOfALength));
    }
  }
  return kExitDone;
}

}  // namespace dsv4::cli
