// Sampling of a token from logits: bias, penalties, temperature, filters, draw, log-probabilities.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dsv4/export.h"
#include "dsv4/status.h"
#include "dsv4/types.h"

namespace dsv4 {

// Order: logit bias; repetition penalty; presence and frequency penalties; temperature; top-k; top-p; min-p; draw. Each
// filter (top-k, top-p, min-p) uses the probabilities of the tokens that the filters before it kept. If two tokens are
// equally likely, the lower id counts as more likely.
struct SamplingParams {
  float temperature = 1.0f;  // >= 0; 0: greedy, the largest logit (of equal logits, the lowest id)
  int64_t top_k = 0;         // keep the k most likely tokens; 0: all
  float top_p = 1.0f;        // (0, 1]: keep the smallest set whose probabilities sum to at least top_p
  float min_p = 0.0f;        // [0, 1]: drop tokens that are less likely than min_p times the most likely token
  // > 0: for tokens in the prompt or the output, divides positive logits by it and multiplies negative logits by it.
  float repeat_penalty = 1.0f;
  float presence_penalty = 0.0f;                           // [-2, 2]: subtracted once if the token is in the output
  float frequency_penalty = 0.0f;                          // [-2, 2]: subtracted for each occurrence in the output
  std::vector<std::pair<TokenId, float>> logit_bias = {};  // added; -inf bans the token, +inf bans all others
  // The same seed, parameters and logits give the same tokens on every machine, device and number of threads. Output
  // token n depends only on the logits, the parameters, the tokens before it, the seed, and n (docs/dev/numerics.md,
  // 4). Not set: Sampler::Create draws a seed.
  std::optional<uint64_t> seed = {};
  int top_logprobs = -1;  // -1: no log-probabilities; n >= 0: of the chosen token and the n most likely tokens
};

// Checks the range of every field and the token ids. Error: kInvalidArgument, which names the field, the value and the
// accepted values.
DSV4_API Status ValidateSampling(const SamplingParams& params, int64_t vocab_size);

// Returns the defaults that the model's author gives in DIR/generation_config.json: temperature, top_k, top_p, min_p,
// repetition_penalty. A value that is absent or outside its range leaves the default of SamplingParams. Error: the file
// cannot be read, or is not a JSON object.
DSV4_API Result<SamplingParams> ReadDefaultSampling(const std::string& model_dir);

struct TokenLogprob {
  TokenId id;
  float logprob;  // natural logarithm, of the model's distribution before bias, penalties, temperature and filters
};

struct SampledToken {
  TokenId id = -1;
  bool drafted = false;           // Engine::Decode: an accepted draft token, from the same step as the token before it
  float logprob = 0;              // if top_logprobs >= 0
  std::vector<TokenLogprob> top;  // most likely first; of equals, the lower id first
};

// Sampler of one sequence: holds the random state and the token counts for the penalties.
class DSV4_API Sampler {
 public:
  virtual ~Sampler() = default;

  // If `params` has no seed, draws one from the system's random source. Same errors as ValidateSampling.
  static Result<std::unique_ptr<Sampler>> Create(const SamplingParams& params, int64_t vocab_size);

  // Adds tokens of the prompt, which count only for repeat_penalty. Ids outside the vocabulary have no effect.
  virtual void AddPrompt(std::span<const TokenId> tokens) = 0;

  // Counts tokens of the vocabulary as output, as if Sample had drawn them: a sampler with the same parameters and seed
  // continues at the point at which another one ended.
  virtual void AddOutput(std::span<const TokenId> tokens) = 0;

  // Draws the next token from logits [V] and counts it as output. `allowed` is empty or has one bit per token (bit
  // id % 32 of word id / 32); a token whose bit is 0 is banned, as by logit_bias. Errors, after which nothing has been
  // counted: kInternal (the logits contain NaN, or only -inf), kInvalidArgument (all tokens with a finite logit are
  // banned, or the number of logits is not V).
  virtual Result<SampledToken> Sample(std::span<const float> logits, std::span<const uint32_t> allowed) = 0;
  Result<SampledToken> Sample(std::span<const float> logits) { return Sample(logits, {}); }

  virtual uint64_t seed() const = 0;
};

}  // namespace dsv4
