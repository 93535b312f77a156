// Compares the KV rows of the ranks. All ranks compute all KV rows from the same sums, so their bytes must be equal.
#pragma once

#include <cstdint>
#include <span>

#include "dsv4/status.h"
#include "engine/ranks/ranks.h"
#include "engine/sessions/session.h"
#include "kv/rank_caches.h"

namespace dsv4 {

// A sequence whose positions [begin, end) have been written.
struct WrittenRows {
  RankCaches* caches = nullptr;
  int64_t begin = 0, end = 0;
};

// Compares window rings, compressor states and the pages of these positions with the leader's. No work may be queued.
// On a difference the ranks have failed: kInternal, with the rank. Also the devices' errors, and kResourceExhausted if
// there is no memory for the copies.
Status CheckRanks(Ranks& ranks, SequenceMemory& memory, std::span<const WrittenRows> written);

}  // namespace dsv4
