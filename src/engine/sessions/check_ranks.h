// Whether ranks agree: all compute all KV rows, from what they sum together, so their bytes are the same.
#pragma once

#include <cstdint>
#include <span>

#include "dsv4/status.h"
#include "engine/ranks/ranks.h"
#include "engine/sessions/session.h"
#include "kv/rank_caches.h"

namespace dsv4 {

// A sequence whose positions from `begin` up to `end` have been written.
struct WrittenRows {
  RankCaches* caches = nullptr;
  int64_t begin = 0, end = 0;
};

// Compares window rings, compressor states and the pages of these positions with the leader's. Nothing may be queued.
// On a difference the ranks have failed: kInternal, which names the rank. Also the devices' errors, and
// kResourceExhausted where there is no memory for the copies.
Status CheckRanks(Ranks& ranks, SequenceMemory& memory, std::span<const WrittenRows> written);

}  // namespace dsv4
