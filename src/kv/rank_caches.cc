#include "kv/rank_caches.h"

#include <utility>

#include "base/str.h"

namespace dsv4 {

namespace {

int64_t SumOver(const std::vector<std::unique_ptr<SequenceCache>>& caches, int64_t (SequenceCache::*bytes)() const) {
  int64_t sum = 0;
  for (const auto& cache : caches) sum += ((*cache).*bytes)();
  return sum;
}

}  // namespace

Result<std::unique_ptr<RankCaches>> RankCaches::Create(std::span<KvMemory* const> memories) {
  std::vector<std::unique_ptr<SequenceCache>> caches;
  for (KvMemory* memory : memories) {
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<SequenceCache> cache, SequenceCache::Create(*memory));
    caches.push_back(std::move(cache));
  }
  return std::unique_ptr<RankCaches>(new RankCaches(std::move(caches)));
}

Result<std::unique_ptr<RankCaches>> RankCaches::Fork(int64_t num_tokens) {
  std::vector<std::unique_ptr<SequenceCache>> forks;
  for (const auto& cache : caches_) {
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<SequenceCache> fork, cache->Fork(num_tokens));
    forks.push_back(std::move(fork));
  }
  return std::unique_ptr<RankCaches>(new RankCaches(std::move(forks)));
}

Status RankCaches::Reserve(int64_t num_tokens) {
  for (size_t r = 0; r < caches_.size(); ++r) {
    const Status status = caches_[r]->Reserve(num_tokens);
    if (!status.ok()) return count() == 1 ? status : Status(status.code(), StrCat("rank ", r, ": ", status.message()));
  }
  return {};
}

Status RankCaches::Truncate(int64_t num_tokens) {
  for (const auto& cache : caches_) DSV4_RETURN_IF_ERROR(cache->Truncate(num_tokens));
  return {};
}

void RankCaches::Reset() {
  for (const auto& cache : caches_) cache->Reset();
}

int64_t RankCaches::memory_bytes() const { return SumOver(caches_, &SequenceCache::memory_bytes); }
int64_t RankCaches::unforked_bytes() const { return SumOver(caches_, &SequenceCache::unforked_bytes); }
int64_t RankCaches::own_bytes() const { return SumOver(caches_, &SequenceCache::own_bytes); }

}  // namespace dsv4
