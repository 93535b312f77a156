// Implementation of dsv4/sampling.h: the sampler on the host, and the state that a device needs to draw instead.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsv4/sampling.h"

namespace dsv4 {

inline constexpr char kBannedAll[] = "logit_bias and the output format ban every remaining token; allow at least one";

class SamplerImpl : public Sampler {
 public:
  SamplerImpl(const SamplingParams& params, int64_t vocab_size, uint64_t seed)
      : params_(params), vocab_size_(vocab_size), seed_(seed) {}

  void AddPrompt(std::span<const TokenId> tokens) override;
  void AddOutput(std::span<const TokenId> tokens) override {
    for (const TokenId id : tokens) Count(id);
  }
  using Sampler::Sample;
  Result<SampledToken> Sample(std::span<const float> logits, std::span<const uint32_t> allowed) override;
  uint64_t seed() const override { return seed_; }

  const SamplingParams& params() const { return params_; }
  uint64_t num_outputs() const { return num_outputs_; }
  bool has_penalties() const {
    return params_.repeat_penalty != 1.0f || params_.presence_penalty != 0 || params_.frequency_penalty != 0;
  }
  bool is_seen(TokenId id) const { return !is_seen_.empty() && is_seen_[static_cast<size_t>(id)]; }
  int64_t output_count(TokenId id) const { return output_count_.empty() ? 0 : output_count_[static_cast<size_t>(id)]; }

  // Records a token that was drawn elsewhere with this sampler's parameters and state.
  void Count(TokenId id);
  // Removes the tokens that were drawn or counted since num_seen() returned `num_seen`.
  size_t num_seen() const { return seen_.size(); }
  void TakeBack(std::span<const TokenId> drawn, size_t num_seen);

 private:
  static Status NanError(std::span<const float> logits);
  void MarkSeen(TokenId id);
  // Returns the logits with bias and penalties; tokens that are not allowed are -inf. Nothing to adjust: `logits`.
  std::span<const float> Adjust(std::span<const float> logits, std::span<const uint32_t> allowed);
  static TokenId FirstEqual(std::span<const float> logits, float value);
  TokenId DrawOne(std::span<const float> logits, float largest);
  TokenId DrawOfTopK(std::span<const float> logits, float largest, uint64_t draw);
  void SetWeights(std::span<const float> logits, float largest);
  void CutMinP();
  void CutTopP(std::span<const float> logits, float largest);
  void AddLogprobs(std::span<const float> logits, float largest, SampledToken& out);

  SamplingParams params_;
  int64_t vocab_size_;
  uint64_t seed_;
  uint64_t num_outputs_ = 0;
  std::vector<int64_t> output_count_;  // [V]; empty until a token has been seen, and without penalties
  std::vector<bool> is_seen_;          // [V]
  std::vector<TokenId> seen_;
  std::vector<float> adjusted_;     // [V]; of Adjust
  std::vector<float> kept_logits_;  // [top_k]
  std::vector<double> weights_;     // [V] or [top_k]
  std::vector<uint64_t> masses_;    // of weights_
  std::vector<int32_t> bins_;       // [V]; of CutTopP
  std::vector<TokenId> ids_;        // of the values that are sorted
};

}  // namespace dsv4
