// Behind include/dsv4/engine.h and session.h: time and memory, no math.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "dsv4/engine.h"
#include "dsv4/session.h"
#include "kv/sequence_cache.h"
#include "model/deepseek_v4/activations.h"
#include "model/deepseek_v4/bind.h"
#include "model/deepseek_v4/forward.h"

namespace dsv4 {

// The checks that Engine::Load and Inspect share.
Status CheckEngineOptions(const EngineOptions& options);
ModelInfo MakeModelInfo(const Config& config, const EngineOptions& options, const BindReport& report);

class SessionImpl;

class EngineImpl : public Engine {
 public:
  EngineImpl(Model model, ModelInfo info, const EngineOptions& options);

  const ModelInfo& info() const override { return info_; }
  Result<std::unique_ptr<Session>> NewSession() override;
  Status Step(std::span<const StepItem> items) override;

  int64_t prefill_chunk() const { return prefill_chunk_; }

  // Ids inside the vocabulary, and room in the context.
  Status Check(const SessionImpl& session, std::span<const TokenId> tokens) const;

 private:
  // What is left of one step item.
  struct Part {
    SessionImpl* session;
    std::span<const TokenId> tokens;
    LogitRows rows;
    std::vector<float>* logits;
    int64_t done = 0;  // rows of logits written
  };

  void EnsureActivations(int64_t max_tokens, int64_t max_rows);

  // One forward pass over at most `budget` tokens; drops the parts that it finishes.
  void RunPass(std::vector<Part>& parts, int64_t budget);

  Model model_;
  ModelInfo info_;
  int64_t prefill_chunk_;
  ThreadPool pool_;
  ExecContext ctx_;
  PagePool pages_;
  std::unique_ptr<Activations> activations_;
  dsv4::Step step_;
  std::vector<float> logits_;
};

class SessionImpl : public Session {
 public:
  SessionImpl(EngineImpl& engine, std::unique_ptr<SequenceCache> cache)
      : engine_(&engine), cache_(std::move(cache)) {}

  const std::vector<TokenId>& tokens() const override { return tokens_; }
  Status Append(std::span<const TokenId> tokens, LogitRows rows, std::vector<float>* logits,
                const ProgressFn& progress) override;
  void Reset() override;
  int64_t memory_bytes() const override { return cache_->memory_bytes(); }

  EngineImpl& engine() const { return *engine_; }
  SequenceCache& cache() const { return *cache_; }
  // Room for `more` tokens, so that Commit cannot fail; grows geometrically, as one token a step would otherwise copy
  // the whole list each time.
  void ReserveTokens(size_t more) {
    if (tokens_.capacity() < tokens_.size() + more) tokens_.reserve(std::max(2 * tokens_.size(), tokens_.size() + more));
  }
  void Commit(std::span<const TokenId> tokens) { tokens_.insert(tokens_.end(), tokens.begin(), tokens.end()); }

 private:
  EngineImpl* engine_;
  std::unique_ptr<SequenceCache> cache_;
  std::vector<TokenId> tokens_;
};

}  // namespace dsv4
