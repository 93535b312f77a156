// Behind include/dsv4/snapshot.h; the form of the files is described in docs/formats.md.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsv4/snapshot.h"
#include "engine/engine_impl.h"

namespace dsv4 {

class SnapshotImpl : public KvSnapshot {
 public:
  SnapshotImpl(std::shared_ptr<SequenceMemory> memory, std::unique_ptr<SequenceCache> cache, std::vector<TokenId> tokens)
      : memory_(std::move(memory)), cache_(std::move(cache)), tokens_(std::move(tokens)) {}

  const std::vector<TokenId>& tokens() const override { return tokens_; }
  int64_t memory_bytes() const override { return cache_->memory_bytes(); }
  int64_t own_bytes() const override { return cache_->own_bytes(); }
  Result<std::shared_ptr<const SnapshotImage>> MakeImage(std::string_view note) const override;

  SequenceCache& cache() const { return *cache_; }
  const std::shared_ptr<SequenceMemory>& memory() const { return memory_; }

 private:
  std::shared_ptr<SequenceMemory> memory_;  // where cache_ lies
  std::unique_ptr<SequenceCache> cache_;    // of tokens_; nobody writes to it
  std::vector<TokenId> tokens_;
};

}  // namespace dsv4
