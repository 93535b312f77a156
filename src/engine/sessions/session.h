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
#include "engine/sessions/kept_tokens.h"
#include "kv/rank_caches.h"
#include "kv/sequence_cache.h"

namespace dsv4 {

class SessionImpl;

// What sessions and snapshots ask of the engine that they belong to.
class SessionOwner {
 public:
  // Session::Append of one of its sessions.
  virtual Status AppendTo(SessionImpl& session, std::span<const TokenId> tokens, LogitRows rows,
                          std::vector<float>* logits, const ProgressFn& progress) = 0;
  // Also what SequenceMemory::fingerprint is from then on.
  virtual Result<std::string> SnapshotFingerprint() = 0;

 protected:
  ~SessionOwner() = default;
};

// It lives as long as the last session or snapshot, as they may be destroyed after their engine.
struct SequenceMemory {
  // A device for each rank.
  SequenceMemory(std::vector<std::unique_ptr<Device>> d, const KvLayout& layout) : devices(std::move(d)) {
    for (const auto& rank : devices) {
      memories.push_back(std::make_unique<KvMemory>(layout, rank.get()));
      kv_of_ranks.push_back(memories.back().get());
    }
  }

  Device& device() const { return *devices.front(); }  // the leader's
  const KvLayout& layout() const { return memories.front()->layout; }
  int64_t bytes_in_use() const {  // of all ranks
    int64_t bytes = 0;
    for (const auto& memory : memories) bytes += memory->bytes_in_use();
    return bytes;
  }
  int64_t bytes_kept() const {  // of all ranks: freed blocks, which the next sequences take
    int64_t bytes = 0;
    for (const auto& memory : memories) bytes += memory->bytes_kept();
    return bytes;
  }

  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::unique_ptr<KvMemory>> memories;
  std::vector<KvMemory*> kv_of_ranks;  // memories, for RankCaches
  std::vector<StagingBuffer> staged;   // of each rank, for comparisons (check_ranks.h); empty until there is one
  SessionOwner* owner = nullptr;       // null once it is gone
  std::string fingerprint;  // of what computes the rows: the same fingerprint, the same bits. "": not computed yet
};

// At least one token, ids inside the vocabulary, and room in the context behind `length` tokens.
Status CheckTokens(const ModelInfo& info, int64_t length, std::span<const TokenId> tokens);

class SessionImpl : public Session {
 public:
  SessionImpl(SessionOwner& owner, std::shared_ptr<SequenceMemory> memory, std::unique_ptr<RankCaches> caches)
      : owner_(&owner), memory_(std::move(memory)), caches_(std::move(caches)) {}
  // Of a snapshot.
  SessionImpl(SessionOwner& owner, std::shared_ptr<SequenceMemory> memory, std::unique_ptr<RankCaches> caches,
              std::shared_ptr<const KeptTokens> kept, int64_t written, int64_t drafts_from)
      : owner_(&owner),
        memory_(std::move(memory)),
        caches_(std::move(caches)),
        tokens_(kept->Copy()),
        kept_(std::move(kept)),
        num_kept_(tokens_.size()),
        written_(written),
        drafts_from_(drafts_from) {}

  const std::vector<TokenId>& tokens() const override { return tokens_; }
  Status Append(std::span<const TokenId> tokens, LogitRows rows, std::vector<float>* logits,
                const ProgressFn& progress) override {
    return owner_->AppendTo(*this, tokens, rows, logits, progress);
  }
  Status Truncate(int64_t num_tokens) override;
  void Reset() override;
  Result<std::shared_ptr<const KvSnapshot>> Snapshot() override;
  int64_t memory_bytes() const override { return caches_->memory_bytes(); }
  int64_t own_bytes() const override { return caches_->unforked_bytes(); }

  SessionOwner& owner() const { return *owner_; }
  const SequenceMemory& memory() const { return *memory_; }
  RankCaches& caches() const { return *caches_; }
  SequenceCache& cache() const { return caches_->of(0); }  // the leader's
  // Room for `more` tokens, so that Commit cannot fail; grows geometrically, as one token a step would otherwise copy
  // the whole list each time.
  void ReserveTokens(size_t more) {
    if (tokens_.capacity() < tokens_.size() + more)
      tokens_.reserve(std::max(2 * tokens_.size(), tokens_.size() + more));
  }
  void Commit(std::span<const TokenId> tokens) {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    written_ = std::max(written_, static_cast<int64_t>(tokens_.size()));
  }
  // Rings may hold so many tokens by now: steps were queued of which not all became the session's.
  void NoteWritten(int64_t num_tokens) { written_ = std::max(written_, num_tokens); }
  // The last tokens of a step turn out to be none: at most kSpareSlots of what was ever written.
  void TakeBack(size_t count) { KeepFirst(tokens_.size() - count); }

  // A draft module's rings lack what stands before (Step::keeps_drafts).
  void SkipDrafts() { drafts_from_ = static_cast<int64_t>(tokens_.size()); }
  // The module's next pass reads nothing that is missing.
  bool can_draft() const {
    const auto length = static_cast<int64_t>(tokens_.size());
    return length > 0 && (drafts_from_ == 0 || length - drafts_from_ >= memory_->layout().window);
  }

 private:
  void KeepFirst(size_t count) {
    tokens_.resize(count);
    num_kept_ = std::min(num_kept_, count);
  }

  SessionOwner* owner_;
  std::shared_ptr<SequenceMemory> memory_;  // where caches_ lie
  std::unique_ptr<RankCaches> caches_;
  std::vector<TokenId> tokens_;
  std::shared_ptr<const KeptTokens> kept_;  // of the last snapshot: its first num_kept_ are tokens_' first
  size_t num_kept_ = 0;
  int64_t written_ = 0;      // the most tokens that the rings have held
  int64_t drafts_from_ = 0;  // a draft module's rings hold all from here on
};

inline int64_t LengthOf(const SessionImpl& session) { return static_cast<int64_t>(session.tokens().size()); }

}  // namespace dsv4
