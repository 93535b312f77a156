// One sequence of Engine::Decode, as its loops hand it to each other.
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
  size_t item;           // its number among the items
  SessionImpl* session;  // null: not ours
  SamplerImpl* sampler;  // null: not ours
  TokenId next;          // drawn, not yet appended
  int64_t drawn = 0;
  bool ended = false;
};

std::vector<LiveItem> LiveItemsOf(std::span<const DecodeItem> items);

// Hands a token that was drawn for `live` to the caller; live.ended afterwards says whether it was the last.
void Emit(LiveItem& live, const DecodeItem& item, const SampledToken& token, const TokenFn& on_token);

}  // namespace dsv4
