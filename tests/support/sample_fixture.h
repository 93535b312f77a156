// Random parameters, states and logits for tests of sampling.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "dsv4/sampling.h"
#include "ops/sample/sample.h"
#include "support/random.h"

namespace dsv4::test {

struct SampleCase {
  int64_t v = 0;
  SamplingParams params;
  std::vector<TokenId> prompt;
  std::vector<uint32_t> allowed;  // empty: all
};

inline SampleCase RandomSampleCase(Random& random, int64_t v) {
  SampleCase c{.v = v};
  SamplingParams& p = c.params;
  p.temperature = random.Chance(0.15) ? 0.0f : static_cast<float>(random.Uniform(0.05, 2));
  if (random.Chance(0.4)) p.top_k = random.Index(v + 3);
  if (random.Chance(0.6)) p.top_p = static_cast<float>(random.Uniform(0.01, 1));
  if (random.Chance(0.3)) p.min_p = static_cast<float>(random.Chance(0.1) ? 1 : random.Uniform(0, 0.5));
  if (random.Chance(0.3)) {
    p.repeat_penalty = static_cast<float>(random.Uniform(0.7, 1.6));
    p.presence_penalty = static_cast<float>(random.Uniform(-2, 2));
    p.frequency_penalty = static_cast<float>(random.Uniform(-1, 1));
  }
  if (random.Chance(0.3)) {
    const std::vector<int32_t> ids = random.Permutation(v);
    for (int64_t i = 0; i < std::min<int64_t>(v, 1 + random.Index(5)); ++i) {
      const float infinity = std::numeric_limits<float>::infinity();
      p.logit_bias.emplace_back(ids[static_cast<size_t>(i)], random.Chance(0.3)    ? -infinity
                                                             : random.Chance(0.05) ? infinity
                                                                                   : 3 * random.Normal());
    }
  }
  if (random.Chance(0.3)) {
    const double share = random.Chance(0.5) ? 0.5 : 0.02;
    c.allowed.resize(static_cast<size_t>(v + 31) / 32);
    for (int64_t id = 0; id < v; ++id)
      c.allowed[static_cast<size_t>(id / 32)] |= random.Chance(share) ? 1u << (id % 32) : 0u;
  }
  p.seed = random.Bits();
  p.top_logprobs = 0;
  for (int64_t i = random.Index(20); i > 0; --i) c.prompt.push_back(static_cast<TokenId>(random.Index(v)));
  return c;
}

// Normal numbers, often with ties, infinities, one peak, or all equal; rarely damaged.
inline std::vector<float> RandomLogits(Random& random, int64_t v) {
  std::vector<float> x(static_cast<size_t>(v));
  const int64_t kind = random.Index(8);
  const float scale = kind == 0 ? 0.01f : kind == 1 ? 20.0f : 3.0f;
  for (float& l : x) {
    l = scale * random.Normal();
    if (kind == 2) l = static_cast<float>(random.Index(3)) - 1;
    if (kind == 3) l = random.Chance(0.5) ? 0.0f : -0.0f;
    if (kind == 4 && random.Chance(0.3)) l = -std::numeric_limits<float>::infinity();
    if (kind == 5 && random.Chance(0.01)) l = std::numeric_limits<float>::infinity();
  }
  if (kind == 6) x[static_cast<size_t>(random.Index(v))] = 60;
  if (random.Chance(0.01)) x[static_cast<size_t>(random.Index(v))] = std::numeric_limits<float>::quiet_NaN();
  if (random.Chance(0.01)) std::fill(x.begin(), x.end(), -std::numeric_limits<float>::infinity());
  return x;
}

// A row of the op with its arrays, as the engine makes it for the case.
struct SampleState {
  explicit SampleState(const SampleCase& c)
      : prompt_count(static_cast<size_t>(c.v)), output_count(static_cast<size_t>(c.v)), allowed(c.allowed) {
    for (const TokenId id : c.prompt) ++prompt_count[static_cast<size_t>(id)];
    for (const auto& [id, bias] : c.params.logit_bias) bias_ids.push_back(id), biases.push_back(bias);
    row = {.temperature = c.params.temperature,
           .top_p = c.params.top_p,
           .min_p = c.params.min_p,
           .repeat_penalty = c.params.repeat_penalty,
           .presence_penalty = c.params.presence_penalty,
           .frequency_penalty = c.params.frequency_penalty,
           .top_k = static_cast<int32_t>(c.params.top_k),
           .num_bias = static_cast<int32_t>(bias_ids.size()),
           .seed = *c.params.seed,
           .prompt_count = prompt_count.data(),
           .output_count = output_count.data(),
           .bias_ids = bias_ids.data(),
           .bias = biases.data(),
           .allowed = allowed.empty() ? nullptr : allowed.data()};
  }
  SampleState(const SampleState&) = delete;
  SampleState& operator=(const SampleState&) = delete;

  std::vector<uint16_t> prompt_count, output_count;
  std::vector<int32_t> bias_ids;
  std::vector<float> biases;
  std::vector<uint32_t> allowed;
  SampleRow row;
};

}  // namespace dsv4::test
