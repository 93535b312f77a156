// Implementation of include/dsv4/snapshot.h.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "dsv4/snapshot.h"
#include "engine/sessions/kept_tokens.h"
#include "engine/sessions/session.h"

namespace dsv4 {

class SnapshotImpl : public KvSnapshot {
 public:
  SnapshotImpl(std::shared_ptr<SequenceMemory> memory, std::unique_ptr<RankCaches> caches,
               std::shared_ptr<const KeptTokens> tokens, int64_t written, int64_t drafts_from)
      : memory_(std::move(memory)),
        caches_(std::move(caches)),
        tokens_(std::move(tokens)),
        written_(written),
        drafts_from_(drafts_from) {}

  std::vector<TokenId> tokens() const override { return tokens_->Copy(); }
  int64_t num_tokens() const override { return static_cast<int64_t>(tokens_->size()); }
  int64_t memory_bytes() const override { return caches_->memory_bytes(); }
  int64_t own_bytes() const override { return caches_->own_bytes(); }
  Result<std::shared_ptr<const SnapshotImage>> MakeImage(std::string_view note) const override;

  RankCaches& caches() const { return *caches_; }
  int64_t written() const { return written_; }
  int64_t drafts_from() const { return drafts_from_; }
  const std::shared_ptr<const KeptTokens>& kept_tokens() const { return tokens_; }
  const std::shared_ptr<SequenceMemory>& memory() const { return memory_; }

 private:
  std::shared_ptr<SequenceMemory> memory_;  // the memory of caches_
  std::unique_ptr<RankCaches> caches_;      // of tokens_; read-only
  std::shared_ptr<const KeptTokens> tokens_;
  int64_t written_, drafts_from_;  // as in SessionImpl
};

// Returns a session of `owner` that continues from a snapshot in `memory`. Errors: kInvalidArgument (the snapshot is in
// other memory), kResourceExhausted.
Result<std::unique_ptr<Session>> SessionFrom(const KvSnapshot& snapshot, SessionOwner& owner,
                                             const std::shared_ptr<SequenceMemory>& memory);

// Loads an image's rows into `memory`. Errors: kInvalidArgument (a different fingerprint), kResourceExhausted.
Result<std::shared_ptr<const KvSnapshot>> SnapshotFrom(const SnapshotImage& image,
                                                       const std::shared_ptr<SequenceMemory>& memory);

}  // namespace dsv4
