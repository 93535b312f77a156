// One sequence of Engine::Decode, as the decode loops pass it to each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dsv4/engine.h"
#include "engine/sampling/sampler_impl.h"
#include "engine/sessions/session.h"

namespace dsv4 {

struct LiveItem {
  size_t item;           // its index among the items
  SessionImpl* session;  // null: not of this library
  SamplerImpl* sampler;  // null: not of this library
  TokenId next;          // drawn, not yet appended
  int64_t drawn = 0;
  bool ended = false;
};

std::vector<LiveItem> LiveItemsOf(std::span<const DecodeItem> items);

// Passes a token that was drawn for `live` to the caller. Afterwards live.ended is true if it was the last one.
void Emit(LiveItem& live, const DecodeItem& item, const SampledToken& token, const TokenFn& on_token);

}  // namespace dsv4
