#include "text/token_finder.h"

namespace dsv4 {

namespace {

uint64_t EdgeKey(uint32_t node, char byte) {
  return static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(byte);
}

}  // namespace

void TokenFinder::Add(std::string_view spelling, TokenId id) {
  starts_[static_cast<unsigned char>(spelling[0])] = true;
  uint32_t node = 0;
  for (const char c : spelling) {
    const auto [edge, is_new] = edges_.try_emplace(EdgeKey(node, c), num_nodes_);
    if (is_new) ++num_nodes_;
    node = edge->second;
  }
  ids_[node] = id;
}

TokenFinder::Match TokenFinder::Find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    Match match{begin, begin, -1};
    uint32_t node = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      const auto edge = edges_.find(EdgeKey(node, text[at]));
      if (edge == edges_.end()) break;
      node = edge->second;
      if (const auto id = ids_.find(node); id != ids_.end()) match = {begin, at + 1, id->second};
    }
    if (match.id >= 0) return match;
  }
  return {text.size(), text.size(), -1};
}

}  // namespace dsv4
