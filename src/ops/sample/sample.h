// Chooses the next token of every row from its logits, on any device: the same token as engine/sampling/sampler.cc
// (dsv4/sampling.h says what each parameter does and in which order).
//   adjusted  logits + bias, then the penalties, each in float64 and rounded once; -inf if a token is not allowed
//   weight[i] = exp((adjusted[i] - largest) / temperature), float64; its mass is round(2^46 weight)
//   top_k     keeps the first k tokens in order of (adjusted, falling; id, rising)
//   top_p     of these, in that order, keeps a token while the mass before it is below top_p * the kept mass
//   min_p     of these, keeps the tokens with weight >= min_p
//   draw      the kept token with the least -ln(u[i]) / mass[i], the lowest id of equals: a race that each token wins
//             with probability mass / sum of masses.
//             u[i] = ((RandomBits(RandomBits(seed, num_outputs), i) >> 11) + 1) 2^-53
// Temperature 0 takes the largest adjusted logit, the lowest id of equals. The masses are whole numbers: their sums are
// exact in any order. The times of the race are a fixed sequence of float64 operations. So every implementation, also
// engine/sampling/sampler.cc, chooses the same token.
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
  uint64_t num_outputs = 0;                // tokens chosen so far; grows by one with each choice
  const uint16_t* prompt_count = nullptr;  // [V]: occurrences of a token in the prompt; null: all 0
  // [V]: occurrences in the output. The op adds one for the chosen token, up to 65,535. Null: not counted.
  uint16_t* output_count = nullptr;
  const int32_t* bias_ids = nullptr;  // [num_bias], distinct, in [0, V)
  const float* bias = nullptr;        // [num_bias], no NaN
  const uint32_t* allowed = nullptr;  // [ceil(V / 32)]: bit id % 32 of word id / 32; null: all
  const int32_t* also = nullptr;      // [num_also]: more tokens that count as output
  int32_t num_also = 0;
  bool counts = true;  // false: num_outputs and output_count stay as they are
};
inline constexpr int64_t kSampleRowBytes = static_cast<int64_t>(sizeof(SampleRow));

// The number of words of a row's `allowed`.
constexpr int64_t SampleMaskWords(int64_t vocab_size) { return (vocab_size + 31) / 32; }

// The tokens of a row that cannot be sampled. Its state does not change.
inline constexpr int32_t kSampleNan = -1;      // NaN among the logits
inline constexpr int32_t kSampleNothing = -2;  // every logit is -inf
inline constexpr int32_t kSampleBanned = -3;   // every token that the logits allow is banned or not allowed

inline constexpr int64_t kMaxSampleVocab = 131072;

struct SampleArgs {
  Tensor logits;              // f32 [R, V], V <= kMaxSampleVocab
  SampleRow* rows = nullptr;  // [R]
  Tensor tokens;              // i32 [R], out
  Tensor logprobs;  // f32 [R], out, or empty: ln of the chosen token's probability under the unchanged logits;
                    // NaN if there is no token
};
void Sample(const ExecContext& ctx, const SampleArgs& args);
OpImplementations DescribeSample(const ExecContext& ctx);

}  // namespace dsv4
