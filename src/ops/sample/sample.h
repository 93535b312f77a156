// The next token of every row from its logits: what engine/sampling/sampler.cc chooses (dsv4/sampling.h says what each
// parameter does and in which order), on any device.
//   adjusted  logits + bias, then the penalties, each in float64 and rounded once; -inf where a token is not allowed
//   weight[i] = exp((adjusted[i] - largest) / temperature), float64; its mass is round(2^46 weight)
//   top_k     keeps the k first tokens in order of (adjusted, falling; id, rising)
//   top_p     of these, in that order, keeps a token while the mass before it is below top_p * the kept mass
//   min_p     of these, keeps what has weight >= min_p
//   draw      the kept token with the least -ln(u[i]) / mass[i], the lowest id of equals: a race that each token wins
//   with
//             probability mass / sum of masses. u[i] = ((RandomBits(RandomBits(seed, num_outputs), i) >> 11) + 1)
//             2^-53.
// Masses are whole numbers: their sums are exact in any order, and times are a fixed sequence of float64 operations, so
// every implementation, the sampler of engine/sampling/sampler.cc included, chooses the same token.
// Temperature 0 takes the largest adjusted logit, the lowest id of equals.
#pragma once

#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

// One row's parameters and state, in the device's memory.
struct SampleRow {
  float temperature = 1.0f;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repeat_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t top_k = 0;  // 0: all
  int32_t num_bias = 0;
  uint64_t seed = 0;
  uint64_t num_outputs = 0;                // tokens chosen so far; one more after each choice
  const uint16_t* prompt_count = nullptr;  // [V]: how often a token is in the prompt; null: never
  // [V]: in the output; one more for the token chosen, up to 65,535; null: not counted
  uint16_t* output_count = nullptr;
  const int32_t* bias_ids = nullptr;  // [num_bias], each in [0, V) and once
  const float* bias = nullptr;        // [num_bias], no NaN
  const uint32_t* allowed = nullptr;  // [ceil(V / 32)]: bit id % 32 of word id / 32; null: all
  const int32_t* also = nullptr;      // [num_also]: tokens that count as output besides
  int32_t num_also = 0;
  bool counts = true;  // false: num_outputs and output_count stay as they are
};
inline constexpr int64_t kSampleRowBytes = static_cast<int64_t>(sizeof(SampleRow));

// Words of a row's `allowed`.
constexpr int64_t SampleMaskWords(int64_t vocab_size) { return (vocab_size + 31) / 32; }

// Tokens of a row that cannot be sampled; its state stays as it was.
inline constexpr int32_t kSampleNan = -1;      // NaN among the logits
inline constexpr int32_t kSampleNothing = -2;  // every logit is -inf
inline constexpr int32_t kSampleBanned = -3;   // every token that the logits allow is banned or not allowed

inline constexpr int64_t kMaxSampleVocab = 131072;

struct SampleArgs {
  Tensor logits;              // f32 [R, V], V <= kMaxSampleVocab
  SampleRow* rows = nullptr;  // [R]
  Tensor tokens;              // i32 [R], out
  Tensor logprobs;  // f32 [R], out, or empty: ln of the chosen token's probability under the logits as they came;
                    // NaN where there is no token
};
void Sample(const ExecContext& ctx, const SampleArgs& args);
OpImplementations DescribeSample(const ExecContext& ctx);

}  // namespace dsv4
