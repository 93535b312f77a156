// From logits to a token: penalties, bias, temperature, cuts, draw, log-probabilities.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dsv4/status.h"
#include "dsv4/types.h"

namespace dsv4 {

// Order of work: logit bias; repetition, then presence and frequency penalties; temperature; top-k; top-p; min-p; draw.
// Each cut sees the probabilities of what the cuts before it left. Ties count as more likely at the lower id.
struct SamplingParams {
  float temperature = 1.0f;  // >= 0; 0 takes the largest logit (ties: the lowest id)
  int64_t top_k = 0;         // keep the k most likely; 0: all
  float top_p = 1.0f;        // (0, 1]: keep the smallest set whose probabilities sum to at least top_p
  float min_p = 0.0f;        // [0, 1]: drop what is less likely than min_p times the most likely
  // > 0: logits of tokens seen (prompt and output) are divided (if positive) or multiplied by it
  float repeat_penalty = 1.0f;
  float presence_penalty = 0.0f;                           // [-2, 2]: subtracted once for a token in the output
  float frequency_penalty = 0.0f;                          // [-2, 2]: subtracted for each time it occurs in the output
  std::vector<std::pair<TokenId, float>> logit_bias = {};  // added; -inf bans the token, +inf leaves no other
  // Same seed, parameters and logits: same tokens, on any machine, device and thread count. What output token number n
  // is depends on (logits, parameters, tokens before it, seed, n) alone (docs/dev/numerics.md, 4).
  std::optional<uint64_t> seed = {};
  int top_logprobs = -1;  // -1: no log-probabilities; n >= 0: the chosen token's and the n most likely tokens'
};

// Checks every range and id; the error names the field, the value and what is accepted.
Status ValidateSampling(const SamplingParams& params, int64_t vocab_size);

struct TokenLogprob {
  TokenId id;
  float logprob;  // natural logarithm, of the model's own distribution (before penalties, bias, temperature and cuts)
};

struct SampledToken {
  TokenId id = -1;
  bool drafted = false;           // Engine::Decode: from the step of the token before it, by a draft that was accepted
  float logprob = 0;              // when top_logprobs >= 0
  std::vector<TokenLogprob> top;  // most likely first; ties: the lower id first
};

// One per sequence: carries the random state and the counts that the penalties need.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // Without a seed in `params` one is drawn from the system.
  static Result<std::unique_ptr<Sampler>> Create(const SamplingParams& params, int64_t vocab_size);

  // Tokens of the prompt: they count for repeat_penalty only. Ids outside the vocabulary have no effect.
  virtual void AddPrompt(std::span<const TokenId> tokens) = 0;

  // Chooses the next token from logits [V] and counts it as output. `allowed`, where it is not empty, has a bit for
  // each token (bit id % 32 of word id / 32): what has none is banned, as by logit_bias. Errors, after which nothing
  // has been counted: kInternal when the logits hold NaN, or nothing but -inf; kInvalidArgument when every token that
  // the logits allow is banned, or when there are not V logits.
  virtual Result<SampledToken> Sample(std::span<const float> logits, std::span<const uint32_t> allowed) = 0;
  Result<SampledToken> Sample(std::span<const float> logits) { return Sample(logits, {}); }

  virtual uint64_t seed() const = 0;
};

}  // namespace dsv4
