// Who hears which points the prefix cache keeps.
#pragma once

#include <cstdint>
#include <span>

#include "dsv4/types.h"

namespace dsv4::server {

enum class CutPlace : uint8_t { kMemory, kDisk };

// Called by the engine's thread; must not call the cache.
class CutWatcher {
 public:
  virtual ~CutWatcher() = default;
  // KV of a prompt's first tokens, all of `tokens`, is kept in `place` from now on, or not any more. Each Kept has its
  // Dropped, or a Cleared.
  virtual void Kept(CutPlace place, std::span<const TokenId> tokens) = 0;
  virtual void Dropped(CutPlace place, std::span<const TokenId> tokens) = 0;
  virtual void Cleared() = 0;  // nothing is kept anywhere
};

}  // namespace dsv4::server
