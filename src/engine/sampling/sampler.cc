// Sampler: dsv4/sampling.h defines each parameter and the order in which they apply.
//
// Probabilities are integers, so that their sums are exact. Every random number is a function of (seed, number of the
// output token, token). So a choice depends only on the logits, the parameters and the previous tokens. Masses,
// thresholds and the draw have the same bits as in ops/sample.
#include "dsv4/sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>

#include "base/random.h"
#include "base/sample_math.h"
#include "base/str.h"
#include "engine/sampling/sampler_impl.h"
#include "engine/sampling/sampler_loops.h"
#include "engine/sampling/sampler_race.h"

namespace dsv4 {

namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();
constexpr size_t kBlock = 256;  // tokens whose weights are summed together

Status FieldError(const char* field, auto value, const char* accepted) {
  return InvalidArgument(StrCat(field, " is ", value, "; accepted: ", accepted));
}

// The sum of one block of weights, in four lanes.
double SumBlock(const std::vector<double>& weights, size_t begin) {
  const size_t end = std::min(begin + kBlock, weights.size());
  std::array<double, 4> lanes{};
  size_t i = begin;
  for (; i + 4 <= end; i += 4) {
    for (size_t lane = 0; lane < 4; ++lane) lanes[lane] += weights[i + lane];
  }
  for (; i < end; ++i) lanes[0] += weights[i];
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

double Sum(const std::vector<double>& weights) {
  double sum = 0;
  for (size_t begin = 0; begin < weights.size(); begin += kBlock) sum += SumBlock(weights, begin);
  return sum;
}

// Whether token a precedes b: the larger logit first; ties: the lower id.
auto MoreLikely(std::span<const float> logits) {
  return [logits](TokenId a, TokenId b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); };
}

// ids = the n most likely tokens, most likely first; ties: the lower id first.
void MostLikely(std::span<const float> logits, int64_t n, std::vector<TokenId>& ids) {
  const auto before = MoreLikely(logits);
  const int64_t size = static_cast<int64_t>(logits.size());
  n = std::min(n, size);
  ids.clear();
  if (n <= 0) return;
  if (n <= 1024) {
    // A heap with the least likely kept token on top. Ids ascend, so a tie never enters.
    ids.reserve(n);
    for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<TokenId>(i));
    std::make_heap(ids.begin(), ids.end(), before);
    float least = logits[ids.front()];
    for (int64_t i = n; i < size; ++i) {
      if (logits[i] <= least) continue;
      std::pop_heap(ids.begin(), ids.end(), before);
      ids.back() = static_cast<TokenId>(i);
      std::push_heap(ids.begin(), ids.end(), before);
      least = logits[ids.front()];
    }
  } else {
    ids.resize(size);
    for (int64_t i = 0; i < size; ++i) ids[i] = static_cast<TokenId>(i);
    if (n < size) std::nth_element(ids.begin(), ids.begin() + n, ids.end(), before);
    ids.resize(n);
  }
  std::sort(ids.begin(), ids.end(), before);
}

}  // namespace

void SamplerImpl::AddPrompt(std::span<const TokenId> tokens) {
  if (!has_penalties()) return;
  for (const TokenId id : tokens) {
    if (id >= 0 && id < vocab_size_) MarkSeen(id);
  }
}

Result<SampledToken> SamplerImpl::Sample(std::span<const float> logits, std::span<const uint32_t> allowed) {
  if (static_cast<int64_t>(logits.size()) != vocab_size_) {
    return InvalidArgument(StrCat("sampler: ", logits.size(), " logits for a vocabulary of ", vocab_size_));
  }
  if (!allowed.empty() && static_cast<int64_t>(allowed.size()) * 32 < vocab_size_) {
    return InvalidArgument(
        StrCat("sampler: ", allowed.size(), " words of allowed tokens for a vocabulary of ", vocab_size_));
  }
  bool has_nan = false;
  const float largest = internal::Largest(logits, &has_nan);
  if (has_nan) return NanError(logits);
  if (largest == kNegativeInfinity) {
    return Internal("sampler: every logit is -inf; the model's output is damaged");
  }
  const std::span<const float> adjusted = Adjust(logits, allowed);
  const float adjusted_largest = adjusted.data() == logits.data() ? largest : internal::Largest(adjusted, &has_nan);
  if (adjusted_largest == kNegativeInfinity) {
    return InvalidArgument(kBannedAll);
  }

  SampledToken out;
  out.id = params_.temperature == 0 ? FirstEqual(adjusted, adjusted_largest) : DrawOne(adjusted, adjusted_largest);
  if (params_.top_logprobs >= 0) AddLogprobs(logits, largest, out);
  Count(out.id);
  return out;
}

Status SamplerImpl::NanError(std::span<const float> logits) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) {
      return Internal(StrCat("sampler: the logit of token ", i, " is NaN; the model's weights or output are damaged"));
    }
  }
  return Internal("sampler: NaN among the logits");
}

void SamplerImpl::MarkSeen(TokenId id) {
  if (output_count_.empty()) {
    output_count_.resize(vocab_size_);
    is_seen_.resize(vocab_size_);
    seen_.reserve(vocab_size_);  // so that a draw allocates nothing
  }
  if (!is_seen_[id]) {
    is_seen_[id] = true;
    seen_.push_back(id);
  }
}

// Only penalties need to know which tokens occurred.
void SamplerImpl::Count(TokenId id) {
  ++num_outputs_;
  if (!has_penalties()) return;
  MarkSeen(id);
  ++output_count_[id];
}

void SamplerImpl::TakeBack(std::span<const TokenId> drawn, size_t num_seen) {
  for (const TokenId id : drawn) {
    if (has_penalties()) --output_count_[id];
  }
  for (; seen_.size() > num_seen; seen_.pop_back()) is_seen_[seen_.back()] = false;
  num_outputs_ -= drawn.size();
}

// Each value is computed in float64 and rounded once.
std::span<const float> SamplerImpl::Adjust(std::span<const float> logits, std::span<const uint32_t> allowed) {
  const bool penalises = has_penalties() && !seen_.empty();
  if (params_.logit_bias.empty() && allowed.empty() && !penalises) return logits;
  adjusted_.assign(logits.begin(), logits.end());
  for (const auto& [id, bias] : params_.logit_bias) {
    if (bias == kNegativeInfinity || adjusted_[id] == kNegativeInfinity) {
      adjusted_[id] = kNegativeInfinity;  // also for +inf, for which the sum would be NaN
    } else {
      adjusted_[id] += bias;
    }
  }
  for (size_t word = 0; word * 32 < adjusted_.size() && !allowed.empty(); ++word) {
    const size_t end = std::min(adjusted_.size(), word * 32 + 32);
    for (size_t id = word * 32; id < end && allowed[word] != ~0u; ++id) {
      if ((allowed[word] >> (id % 32) & 1) == 0) adjusted_[id] = kNegativeInfinity;
    }
  }
  if (!penalises) return adjusted_;
  for (const TokenId id : seen_) {
    double logit = adjusted_[id];
    logit = logit > 0 ? logit / params_.repeat_penalty : logit * params_.repeat_penalty;
    if (output_count_[id] > 0) {
      logit -= params_.presence_penalty;
      logit -= static_cast<double>(params_.frequency_penalty) * static_cast<double>(output_count_[id]);
    }
    adjusted_[id] = static_cast<float>(logit);
  }
  return adjusted_;
}

TokenId SamplerImpl::FirstEqual(std::span<const float> logits, float value) {
  return static_cast<TokenId>(std::find(logits.begin(), logits.end(), value) - logits.begin());
}

TokenId SamplerImpl::DrawOne(std::span<const float> logits, float largest) {
  const uint64_t draw = RandomBits(seed_, num_outputs_);
  if (params_.top_k > 0 && params_.top_k < vocab_size_) return DrawOfTopK(logits, largest, draw);
  if (params_.top_p == 1.0f && params_.min_p <= 0)
    return internal::RaceOfLogits(logits, largest, 1.0 / params_.temperature, draw);
  SetWeights(logits, largest);
  if (params_.top_p < 1.0f) CutTopP(logits, largest);
  CutMinP();
  return internal::Race(masses_, {}, draw);
}

// The weights and their masses at the temperature.
void SamplerImpl::SetWeights(std::span<const float> logits, float largest) {
  internal::Softmax(logits, largest, 1.0 / params_.temperature, weights_);  // finite: a float above 0
  internal::Masses(weights_, masses_);
}

TokenId SamplerImpl::DrawOfTopK(std::span<const float> logits, float largest, uint64_t draw) {
  std::vector<TokenId>& kept = ids_;
  MostLikely(logits, params_.top_k, kept);
  kept_logits_.clear();
  for (const TokenId id : kept) kept_logits_.push_back(logits[id]);
  SetWeights(kept_logits_, largest);
  if (params_.top_p < 1.0f) {
    const double wanted = sample::WantedMass(params_.top_p,
                                             std::accumulate(masses_.begin(), masses_.end(), uint64_t{0}));
    uint64_t passed = 0;
    for (uint64_t& mass : masses_) {
      const uint64_t before = passed;
      passed += mass;
      if (sample::ReachesTopP(before, wanted)) mass = 0;
    }
  }
  CutMinP();
  return internal::Race(masses_, kept, draw);
}

void SamplerImpl::CutMinP() {
  if (params_.min_p <= 0) return;
  const double limit = params_.min_p;  // the most likely token has weight 1
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] < limit) masses_[i] = 0;
  }
}

// Sets the masses of the tokens that top_p removes to 0, without sorting the vocabulary. Tokens are binned by their
// distance from the largest logit; only the bin in which the sum reaches top_p is sorted.
void SamplerImpl::CutTopP(std::span<const float> logits, float largest) {
  constexpr int kBins = internal::kTopPBins;
  internal::BinsOf(logits, largest, 1.0 / params_.temperature, bins_);
  std::array<uint64_t, kBins> mass_of{};
  for (size_t i = 0; i < logits.size(); ++i) mass_of[bins_[i]] += masses_[i];
  const double wanted = sample::WantedMass(params_.top_p, std::accumulate(mass_of.begin(), mass_of.end(), uint64_t{0}));
  uint64_t passed = 0;
  int last_bin = 0;
  while (last_bin < kBins - 1 && !sample::ReachesTopP(passed + mass_of[last_bin], wanted))
    passed += mass_of[last_bin++];
  internal::ClearBeyond(bins_, last_bin, masses_);

  std::vector<TokenId>& ids = ids_;
  ids.clear();
  ids.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (bins_[i] == last_bin) ids.push_back(static_cast<TokenId>(i));
  }
  std::sort(ids.begin(), ids.end(), MoreLikely(logits));
  for (const TokenId id : ids) {
    const uint64_t mass = masses_[id];
    if (sample::ReachesTopP(passed, wanted)) masses_[id] = 0;
    passed += mass;
  }
}

void SamplerImpl::AddLogprobs(std::span<const float> logits, float largest, SampledToken& out) {
  internal::Softmax(logits, largest, /*inverse_temperature=*/1.0, weights_);
  const double log_sum = std::log(Sum(weights_));
  const auto logprob = [&](TokenId id) {
    return static_cast<float>(sample::Exponent(logits[id], largest, /*inverse_temperature=*/1.0) - log_sum);
  };
  out.logprob = logprob(out.id);
  MostLikely(logits, params_.top_logprobs, ids_);
  for (const TokenId id : ids_) out.top.push_back({id, logprob(id)});
}

Status ValidateSampling(const SamplingParams& params, int64_t vocab_size) {
  // NaN fails every comparison.
  if (!(params.temperature >= 0 && std::isfinite(params.temperature))) {
    return FieldError("temperature", params.temperature, "0 (greedy) or a positive number");
  }
  if (params.top_k < 0) return FieldError("top_k", params.top_k, "0 (all) or a positive number");
  if (!(params.top_p > 0 && params.top_p <= 1)) return FieldError("top_p", params.top_p, "above 0 and up to 1");
  if (!(params.min_p >= 0 && params.min_p <= 1)) return FieldError("min_p", params.min_p, "0 to 1");
  if (!(params.repeat_penalty > 0 && std::isfinite(params.repeat_penalty))) {
    return FieldError("repeat_penalty", params.repeat_penalty, "a positive number (1: off)");
  }
  if (!(params.presence_penalty >= -2 && params.presence_penalty <= 2)) {
    return FieldError("presence_penalty", params.presence_penalty, "-2 to 2");
  }
  if (!(params.frequency_penalty >= -2 && params.frequency_penalty <= 2)) {
    return FieldError("frequency_penalty", params.frequency_penalty, "-2 to 2");
  }
  if (params.top_logprobs < -1 || params.top_logprobs > vocab_size) {
    const std::string accepted = StrCat("-1 (none) to ", vocab_size, " (the vocabulary)");
    return FieldError("top_logprobs", params.top_logprobs, accepted.c_str());
  }
  std::vector<TokenId> biased;
  for (const auto& [id, bias] : params.logit_bias) {
    if (id < 0 || id >= vocab_size) {
      const std::string accepted = StrCat("token ids from 0 to ", vocab_size - 1);
      return FieldError("logit_bias token id", id, accepted.c_str());
    }
    if (std::isnan(bias)) {
      return InvalidArgument(StrCat("logit_bias of token ", id, " is NaN; accepted: a number, -inf or inf"));
    }
    biased.push_back(id);
  }
  std::sort(biased.begin(), biased.end());
  const auto twice = std::adjacent_find(biased.begin(), biased.end());
  if (twice != biased.end()) return InvalidArgument(StrCat("logit_bias names token ", *twice, " twice; give it once"));
  return {};
}

Result<std::unique_ptr<Sampler>> Sampler::Create(const SamplingParams& params, int64_t vocab_size) {
  if (vocab_size < 1) return FieldError("vocab_size", vocab_size, "at least 1");
  DSV4_RETURN_IF_ERROR(ValidateSampling(params, vocab_size));
  uint64_t seed = 0;
  if (params.seed.has_value()) {
    seed = *params.seed;
  } else {
    std::random_device device;
    seed = (static_cast<uint64_t>(device()) << 32) | device();
  }
  return std::unique_ptr<Sampler>(std::make_unique<SamplerImpl>(params, vocab_size, seed));
}

}  // namespace dsv4
