// One sequence's KV memory on every rank. All ranks compute all rows, with the same bits. So the caches of all ranks
// have the same pages in the same state (whole, shared or being filled); only the addresses differ.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dsv4/status.h"
#include "kv/sequence_cache.h"

namespace dsv4 {

class RankCaches {
 public:
  // memories[r] belongs to rank r. All have one layout and outlive the caches.
  static Result<std::unique_ptr<RankCaches>> Create(std::span<KvMemory* const> memories);

  // The functions of SequenceCache, on every rank. On an error nothing has changed, except that ranks with memory for
  // more pages keep those for the next attempt.
  Result<std::unique_ptr<RankCaches>> Fork(int64_t num_tokens);
  Status Reserve(int64_t num_tokens);
  Status Truncate(int64_t num_tokens);
  void Reset();

  int count() const { return static_cast<int>(caches_.size()); }
  SequenceCache& of(int rank) const { return *caches_[static_cast<size_t>(rank)]; }

  // Sums over all ranks.
  int64_t memory_bytes() const;
  int64_t unforked_bytes() const;
  int64_t own_bytes() const;

 private:
  explicit RankCaches(std::vector<std::unique_ptr<SequenceCache>> caches) : caches_(std::move(caches)) {}

  std::vector<std::unique_ptr<SequenceCache>> caches_;
};

}  // namespace dsv4
