// Implementation of include/dsv4/session.h, and the memory of sessions and snapshots.
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

// The functions of an engine that its sessions and snapshots use.
class SessionOwner {
 public:
  // Session::Append of one of its sessions.
  virtual Status AppendTo(SessionImpl& session, std::span<const TokenId> tokens, LogitRows rows,
                          std::vector<float>* logits, const ProgressFn& progress) = 0;
  virtual Status AppendInto(SessionImpl& session, std::span<const TokenId> tokens, LogitRows rows,
                            std::span<float> logits, const ProgressFn& progress) = 0;
  // Also sets SequenceMemory::fingerprint.
  virtual Result<std::string> SnapshotFingerprint() = 0;

 protected:
  ~SessionOwner() = default;
};

// It lives as long as the last session or snapshot, because they may be destroyed after their engine.
struct SequenceMemory {
  // One device per rank.
  SequenceMemory(std::vector<std::unique_ptr<Device>> d, const KvLayout& layout) : devices(std::move(d)) {
    for (const auto& rank : devices) {
      memories.push_back(std::make_unique<KvMemory>(layout, rank.get()));
      kv_of_ranks.push_back(memories.back().get());
    }
  }

  Device& device() const { return *devices.front(); }  // the leader's
  const KvLayout& layout() const { return memories.front()->layout; }
  int64_t bytes_in_use() const {  // sum over all ranks
    int64_t bytes = 0;
    for (const auto& memory : memories) bytes += memory->bytes_in_use();
    return bytes;
  }
  int64_t bytes_kept() const {  // sum over all ranks: freed blocks, which later sequences reuse
    int64_t bytes = 0;
    for (const auto& memory : memories) bytes += memory->bytes_kept();
    return bytes;
  }

  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::unique_ptr<KvMemory>> memories;
  std::vector<KvMemory*> kv_of_ranks;  // memories, for RankCaches
  std::vector<StagingBuffer> staged;   // per rank, for comparisons (check_ranks.h); empty until the first one
  SessionOwner* owner = nullptr;       // null after its destruction
  std::string fingerprint;  // of everything that computes rows: equal fingerprints, equal bits. "": not computed yet
};

// Checks: at least one token, ids inside the vocabulary, and the context limit for `length` + these tokens.
Status CheckTokens(const ModelInfo& info, int64_t length, std::span<const TokenId> tokens);

class SessionImpl : public Session {
 public:
  SessionImpl(SessionOwner& owner, std::shared_ptr<SequenceMemory> memory, std::unique_ptr<RankCaches> caches)
      : owner_(&owner), memory_(std::move(memory)), caches_(std::move(caches)) {}
  // The session of a snapshot.
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
  Status AppendInto(std::span<const TokenId> tokens, LogitRows rows, std::span<float> logits,
                    const ProgressFn& progress) override {
    return owner_->AppendInto(*this, tokens, rows, logits, progress);
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
  // Reserves memory for `more` tokens, so that Commit cannot fail. Grows geometrically: otherwise each step with one
  // token would copy the whole list.
  void ReserveTokens(size_t more) {
    if (tokens_.capacity() < tokens_.size() + more)
      tokens_.reserve(std::max(2 * tokens_.size(), tokens_.size() + more));
  }
  void Commit(std::span<const TokenId> tokens) {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    written_ = std::max(written_, static_cast<int64_t>(tokens_.size()));
  }
  // Rings may hold this many tokens: steps were queued, and the session did not keep all of their tokens.
  void NoteWritten(int64_t num_tokens) { written_ = std::max(written_, num_tokens); }
  // Removes the last tokens of a step: at most kSpareSlots of the tokens ever written.
  void TakeBack(size_t count) { KeepFirst(tokens_.size() - count); }

  // The state that a stopped step has changed: the tokens, and also the rings if it has more tokens than they can roll
  // back.
  struct State {
    size_t num_tokens = 0;
    int64_t written = 0, drafts_from = 0;
    int64_t more = 0;            // tokens of the step
    std::vector<uint8_t> rings;  // the fixed block; empty: it is not needed
  };
  // For steps of `more` tokens of a session on the host with one rank.
  State SaveFor(int64_t more) const {
    State state{.num_tokens = tokens_.size(), .written = written_, .drafts_from = drafts_from_, .more = more};
    if (more > kMaxTruncatedTokens && !tokens_.empty())
      state.rings.assign(cache().fixed(), cache().fixed() + memory_->layout().fixed_bytes);
    return state;
  }
  void Restore(const State& state) {
    if (state.num_tokens == 0) return Reset();
    KeepFirst(state.num_tokens);
    drafts_from_ = state.drafts_from;
    written_ = state.written;
    if (state.rings.empty()) return NoteWritten(static_cast<int64_t>(state.num_tokens) + state.more);
    std::copy(state.rings.begin(), state.rings.end(), cache().fixed());
  }

  // The rings of a draft module lack the positions before (Step::keeps_drafts).
  void SkipDrafts() { drafts_from_ = static_cast<int64_t>(tokens_.size()); }
  // Whether the rings have everything that the module's next pass reads.
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
  std::shared_ptr<SequenceMemory> memory_;  // the memory of caches_
  std::unique_ptr<RankCaches> caches_;
  std::vector<TokenId> tokens_;
  std::shared_ptr<const KeptTokens> kept_;  // of the last snapshot: its first num_kept_ tokens are the first of tokens_
  size_t num_kept_ = 0;
  int64_t written_ = 0;      // the largest number of tokens that the rings have held
  int64_t drafts_from_ = 0;  // a draft module's rings have all positions from this one
};

inline int64_t LengthOf(const SessionImpl& session) { return static_cast<int64_t>(session.tokens().size()); }

}  // namespace dsv4
