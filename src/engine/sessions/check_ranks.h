// Whether ranks agree: all compute all KV rows, from what they sum together, so their bytes are the same.
#pragma once

#include <span>

#include "dsv4/status.h"
#include "engine/ranks/ranks.h"
#include "engine/sessions/session.h"
#include "kv/rank_caches.h"

namespace dsv4 {

// Compares window rings, compressor states and the last page of each of `caches` with the leader's. Nothing may be
// queued. On a difference the ranks have failed: kInternal, which names the rank. Also the devices' errors, and
// kResourceExhausted where there is no memory for the copies.
Status CheckRanks(Ranks& ranks, SequenceMemory& memory, std::span<RankCaches* const> caches);

}  // namespace dsv4
