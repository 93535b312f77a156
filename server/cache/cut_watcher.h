// Reports which prefixes the prefix cache keeps.
#pragma once

#include <cstdint>
#include <span>

#include "dsv4/types.h"

namespace dsv4::server {

enum class CutPlace : uint8_t { kMemory, kDisk };

// Called on the engine's thread. Must not call the cache.
class CutWatcher {
 public:
  virtual ~CutWatcher() = default;
  // The cache begins (Kept) or stops (Dropped) keeping the KV of a prompt's first tokens, `tokens`, in `place`. Each
  // Kept is followed by its Dropped or by a Cleared.
  virtual void Kept(CutPlace place, std::span<const TokenId> tokens) = 0;
  virtual void Dropped(CutPlace place, std::span<const TokenId> tokens) = 0;
  virtual void Cleared() = 0;  // the cache keeps no prefix any more
};

}  // namespace dsv4::server
