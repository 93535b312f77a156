// A fixture with a draft module, run without the engine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/tensor_source.h"
#include "kv/sequence_cache.h"
#include "model/deepseek_v4/load/bind.h"
#include "model/deepseek_v4/pass/draft.h"
#include "model/deepseek_v4/schema/draft_config.h"
#include "support/fixture.h"

namespace dsv4::test {

inline constexpr NumericsModes kExactModes = {KvDtype::kF32, IndexDtype::kF32, ActivationDtype::kF32};

// Prompt and generated tokens: references of draft modules count positions over both.
inline std::vector<int32_t> AllIds(const std::string& dir) {
  std::vector<int32_t> ids = ReferenceArray(dir, "prompt_ids").i32;
  const Array greedy = ReferenceArray(dir, "greedy_ids");
  ids.insert(ids.end(), greedy.i32.begin(), greedy.i32.end());
  return ids;
}

class DraftModel {
 public:
  static constexpr int64_t kMaxTokens = 256, kMaxRows = 16;

  DraftModel(const std::string& dir, const NumericsModes& modes, bool reference_ops = false) : pool_(2) {
    auto config = std::move(deepseek_v4::LoadConfig(dir)).value();
    auto source = TensorSource::Open(dir).value();
    const Status drafts = deepseek_v4::LoadDraftConfig(dir, *source, DraftModule::kAny, &config);
    DSV4_CHECK(drafts.ok(), drafts.message());
    auto weights = deepseek_v4::BindWeights(config, source);
    DSV4_CHECK(weights.ok(), weights.status().message());
    model_ = deepseek_v4::MakeModel(config, std::move(*weights), modes);
    memory_ = std::make_unique<KvMemory>(model_.kv_layout);
    activations_ = std::make_unique<deepseek_v4::Activations>(model_.config, kMaxTokens, kMaxRows);
    ctx_ = {.pool = &pool_, .reference_ops = reference_ops};
  }

  const deepseek_v4::Model& model() const { return model_; }
  deepseek_v4::Activations& activations() { return *activations_; }
  int64_t vocab() const { return model_.config.vocab_size; }
  std::unique_ptr<SequenceCache> NewCache() { return SequenceCache::Create(*memory_).value(); }

  // Processes `tokens` at `start`. Returns logits of the last row if requested.
  void Forward(SequenceCache& cache, int64_t start, std::span<const int32_t> tokens, std::vector<float>* logits = {}) {
    const auto t = static_cast<int64_t>(tokens.size());
    DSV4_CHECK(cache.Reserve(start + t).ok());
    Step step;
    step.tokens.assign(tokens.begin(), tokens.end());
    for (int64_t i = 0; i < t; ++i) step.positions.push_back(start + i);
    step.sequence_of.assign(tokens.size(), 0);
    step.sequences = {cache.View(start, 0, t)};
    if (logits != nullptr) step.logit_rows = {static_cast<int32_t>(t - 1)};
    const Tensor out = activations_->Logits(static_cast<int64_t>(step.logit_rows.size()));
    deepseek_v4::Forward(ctx_, model_, HostView(step), *activations_, out);
    if (logits != nullptr) logits->assign(out.f32(), out.f32() + out.num_elements());
  }
  // In chunks.
  void ForwardAll(SequenceCache& cache, std::span<const int32_t> tokens, size_t chunk) {
    for (size_t i = 0; i < tokens.size(); i += chunk)
      Forward(cache, static_cast<int64_t>(i), tokens.subspan(i, std::min(chunk, tokens.size() - i)));
  }

  // One sequence of a draft pass: `token` follows the `position` tokens that are processed.
  struct Row {
    SequenceCache* cache;
    int64_t position;
    int32_t token;
  };
  struct Drafted {
    std::vector<float> logits, confidence;  // [S, V], [S]
  };
  Drafted Draft(std::span<const Row> rows, int64_t place) {
    Step step;
    for (const Row& row : rows) {
      const auto s = static_cast<int64_t>(step.tokens.size());
      step.tokens.push_back(row.token);
      step.positions.push_back(row.position);
      step.sequence_of.push_back(static_cast<int32_t>(s));
      step.sequences.push_back(row.cache->View(row.position, s, s + 1));
    }
    const auto s = static_cast<int64_t>(rows.size());
    Drafted out{.logits = std::vector<float>(static_cast<size_t>(s * vocab())),
                .confidence = std::vector<float>(rows.size())};
    deepseek_v4::Draft(ctx_, model_, HostView(step), place, *activations_,
                       {out.logits.data(), DType::kF32, {s, vocab()}}, {out.confidence.data(), DType::kF32, {s}});
    return out;
  }
  Drafted Draft(SequenceCache& cache, int64_t position, int32_t token, int64_t place) {
    const Row row{&cache, position, token};
    return Draft({&row, 1}, place);
  }

 private:
  ThreadPool pool_;
  deepseek_v4::Model model_;
  std::unique_ptr<KvMemory> memory_;
  std::unique_ptr<deepseek_v4::Activations> activations_;
  ExecContext ctx_;
};

}  // namespace dsv4::test
