#include "server/cache/kv_events.h"

#include <algorithm>
#include <utility>

#include "server/metrics/metrics.h"

namespace dsv4::server {

namespace {

constexpr size_t kBlockTokens = kKvPageTokens;
constexpr size_t kStoredOfMessage = 16, kRemovedOfMessage = 1024;  // blocks: about 20 KB

const char* MediumOf(CutPlace place) { return place == CutPlace::kMemory ? "gpu" : "cpu"; }

// Returns the hashes of the blocks of `tokens`; each covers all tokens up to the end of its block. They are names for
// readers, which trust this server.
std::vector<uint64_t> BlockHashes(std::span<const TokenId> tokens) {
  std::vector<uint64_t> hashes;
  uint64_t hash = 0x9E3779B97F4A7C15u;
  for (size_t i = 0; i + kBlockTokens <= tokens.size(); i += kBlockTokens) {
    for (const TokenId id : tokens.subspan(i, kBlockTokens)) {  // one step of SplitMix64
      hash += 0x9E3779B97F4A7C15u + static_cast<uint64_t>(id);
      hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9u;
      hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBu;
      hash ^= hash >> 31;
    }
    hashes.push_back(hash);
  }
  return hashes;
}

}  // namespace

// A prefix that has a block also has all blocks before it, so the new blocks are the last ones.
void KvBlocks::Kept(CutPlace place, std::span<const TokenId> tokens) {
  Counts& counts = counts_[static_cast<size_t>(place)];
  const std::vector<uint64_t> hashes = BlockHashes(tokens);
  size_t first = 0;
  for (const uint64_t hash : hashes) {
    if (++counts[hash] > 1) ++first;
  }
  for (size_t at = first; at < hashes.size(); at += kStoredOfMessage) {
    const size_t count = std::min(kStoredOfMessage, hashes.size() - at);
    Json names = std::span(hashes).subspan(at, count), ids = tokens.subspan(at * kBlockTokens, count * kBlockTokens);
    publish_(Json::array({Json::array({"BlockStored", std::move(names), at > 0 ? Json(hashes[at - 1]) : Json(nullptr),
                                       std::move(ids), kBlockTokens, nullptr, MediumOf(place)})}));
  }
}

void KvBlocks::Dropped(CutPlace place, std::span<const TokenId> tokens) {
  Counts& counts = counts_[static_cast<size_t>(place)];
  std::vector<uint64_t> gone;
  for (const uint64_t hash : BlockHashes(tokens)) {
    const auto at = counts.find(hash);
    if (at == counts.end() || --at->second > 0) continue;
    counts.erase(at);
    gone.push_back(hash);
  }
  for (size_t at = 0; at < gone.size(); at += kRemovedOfMessage) {
    const size_t count = std::min(kRemovedOfMessage, gone.size() - at);
    Json names = std::span(gone).subspan(at, count);
    publish_(Json::array({Json::array({"BlockRemoved", std::move(names), MediumOf(place)})}));
  }
}

void KvBlocks::Cleared() {
  for (Counts& counts : counts_) counts.clear();
  publish_(Json::array({Json::array({"AllBlocksCleared"})}));
}

}  // namespace dsv4::server
