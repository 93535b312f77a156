// A sequence of a model that advances by steps of any width and can be truncated.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kv/sequence_cache.h"
#include "model/deepseek_v4/load/bind.h"
#include "model/deepseek_v4/pass/forward.h"
#include "support/fixture.h"
#include "support/sessions.h"
#include "support/visible_state.h"

namespace dsv4::test {

// A fixture's model as in training, whose rings have `spare_slots` more slots than the model reads.
inline deepseek_v4::Model ModelWithSpareSlots(const std::string& dir, int64_t spare_slots) {
  auto config = deepseek_v4::LoadConfig(dir);
  auto source = TensorSource::Open(dir);
  DSV4_CHECK(config.ok() && source.ok());
  auto weights = deepseek_v4::BindWeights(*config, *source);
  DSV4_CHECK(weights.ok());
  const NumericsModes modes;
  deepseek_v4::Model model = deepseek_v4::MakeModel(*config, std::move(*weights), modes);
  KvSpec spec = deepseek_v4::MakeKvSpec(*config, modes);
  spec.spare_slots = spare_slots;
  model.kv_layout = MakeKvLayout(spec);
  return model;
}

class Timeline {
 public:
  explicit Timeline(const deepseek_v4::Model& model)
      : model_(&model),
        memory_(std::make_shared<KvMemory>(model.kv_layout)),
        cache_(std::move(SequenceCache::Create(*memory_)).value()) {}

  int64_t size() const { return size_; }

  // Logits of every token.
  std::vector<float> Append(std::span<const TokenId> tokens) {
    const auto t = static_cast<int64_t>(tokens.size());
    DSV4_CHECK(cache_->Reserve(size_ + t).ok());
    Step step;
    for (int64_t i = 0; i < t; ++i) {
      step.tokens.push_back(tokens[static_cast<size_t>(i)]);
      step.positions.push_back(size_ + i);
      step.sequence_of.push_back(0);
      step.logit_rows.push_back(static_cast<int32_t>(i));
    }
    step.sequences = {cache_->View(size_, 0, t)};
    deepseek_v4::Activations activations(model_->config, t, t);
    std::vector<float> logits(static_cast<size_t>(t * model_->config.vocab_size));
    deepseek_v4::Forward({}, *model_, HostView(step), activations,
                         {logits.data(), DType::kF32, {t, model_->config.vocab_size}});
    size_ += t;
    return logits;
  }
  void TakeBack(int64_t count) { size_ -= count; }

  Timeline Fork() {
    Timeline fork(*model_, memory_, std::move(cache_->Fork(size_)).value());
    fork.size_ = size_;
    return fork;
  }
  std::vector<uint8_t> Visible() const { return VisibleState(model_->kv_layout, *cache_, size_); }

 private:
  Timeline(const deepseek_v4::Model& model, std::shared_ptr<KvMemory> memory, std::unique_ptr<SequenceCache> cache)
      : model_(&model), memory_(std::move(memory)), cache_(std::move(cache)) {}

  const deepseek_v4::Model* model_;
  std::shared_ptr<KvMemory> memory_;
  std::unique_ptr<SequenceCache> cache_;
  int64_t size_ = 0;
};

// Tokens, and the logits of each when it is computed alone.
struct KnownRun {
  std::vector<TokenId> tokens;
  std::vector<std::vector<float>> rows;  // from token `first`
  int64_t first = 0;

  std::span<const float> Row(int64_t position) const { return rows[static_cast<size_t>(position - first)]; }
};

// A step of `width` tokens; the first `keep` are the run's, the others are not and are removed. Returns whether the
// rows of the kept tokens have the run's bits.
inline bool StepAndTakeBack(Timeline& timeline, const KnownRun& run, int64_t width, int64_t keep) {
  const int64_t at = timeline.size(), vocab = static_cast<int64_t>(run.rows[0].size());
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < width; ++i) {
    const TokenId id = run.tokens[static_cast<size_t>(at + i)];
    tokens.push_back(i < keep ? id : static_cast<TokenId>((id + 1 + i) % vocab));
  }
  const std::vector<float> logits = timeline.Append(tokens);
  timeline.TakeBack(width - keep);
  bool same = true;
  for (int64_t i = 0; i < keep; ++i) {
    const std::span<const float> want = run.Row(at + i);
    same = same && std::equal(want.begin(), want.end(), logits.begin() + i * vocab);
  }
  return same;
}

}  // namespace dsv4::test
