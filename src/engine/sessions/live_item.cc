#include "engine/sessions/live_item.h"

#include <algorithm>

namespace dsv4 {

std::vector<LiveItem> LiveItemsOf(std::span<const DecodeItem> items) {
  std::vector<LiveItem> live;
  for (size_t i = 0; i < items.size(); ++i) {
    live.push_back({.item = i,
                    .session = dynamic_cast<SessionImpl*>(items[i].session),
                    .sampler = dynamic_cast<SamplerImpl*>(items[i].sampler),
                    .next = items[i].first});
  }
  return live;
}

void Emit(LiveItem& live, const DecodeItem& item, const SampledToken& token, const TokenFn& on_token) {
  live.next = token.id;
  ++live.drawn;
  const bool stop = std::find(item.stop_ids.begin(), item.stop_ids.end(), token.id) != item.stop_ids.end();
  live.ended = !on_token(live.item, token) || stop || live.drawn >= item.max_tokens;
}

}  // namespace dsv4
