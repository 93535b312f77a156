// Behind include/dsv4/session.h, and what sessions and snapshots hold memory of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "dsv4/engine.h"
#include "dsv4/session.h"
#include "dsv4/snapshot.h"
#include "kv/sequence_cache.h"

namespace dsv4 {

class EngineImpl;

// It lives as long as the last session or snapshot, as they may be destroyed after their engine.
struct SequenceMemory {
  SequenceMemory(std::unique_ptr<Device> d, KvLayout layout) : device(std::move(d)), kv(std::move(layout), device.get()) {}

  std::unique_ptr<Device> device;
  KvMemory kv;
  EngineImpl* engine = nullptr;  // null once it is gone
  std::string fingerprint;  // of what computes the rows: the same fingerprint, the same bits. "": not computed yet
};

// At least one token, ids inside the vocabulary, and room in the context behind `length` tokens.
Status CheckTokens(const ModelInfo& info, int64_t length, std::span<const TokenId> tokens);

class SessionImpl : public Session {
 public:
  SessionImpl(EngineImpl& engine, std::shared_ptr<SequenceMemory> memory, std::unique_ptr<SequenceCache> cache,
              std::vector<TokenId> tokens = {})
      : engine_(&engine), memory_(std::move(memory)), cache_(std::move(cache)), tokens_(std::move(tokens)) {}

  const std::vector<TokenId>& tokens() const override { return tokens_; }
  Status Append(std::span<const TokenId> tokens, LogitRows rows, std::vector<float>* logits,
                const ProgressFn& progress) override;
  void Reset() override;
  Result<std::shared_ptr<const KvSnapshot>> Snapshot() override;
  int64_t memory_bytes() const override { return cache_->memory_bytes(); }
  int64_t own_bytes() const override { return cache_->unforked_bytes(); }

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
  std::shared_ptr<SequenceMemory> memory_;  // where cache_ lies
  std::unique_ptr<SequenceCache> cache_;
  std::vector<TokenId> tokens_;
};

}  // namespace dsv4
