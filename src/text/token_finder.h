// Finds the spellings of added tokens in text.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>

#include "dsv4/types.h"

namespace dsv4 {

class TokenFinder {
 public:
  // Spellings are not empty and differ from each other.
  void Add(std::string_view spelling, TokenId id);

  struct Match {
    size_t begin;
    size_t end;
    TokenId id;  // -1: no match up to the end of the text
  };

  // The leftmost match at or after `from`; of several that begin there, the longest.
  Match Find(std::string_view text, size_t from) const;

 private:
  // A trie. Edges are keyed by node << 8 | byte; the root is node 0.
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::unordered_map<uint32_t, TokenId> ids_;  // of the nodes where a spelling ends
  std::array<bool, 256> starts_{};             // bytes that some spelling begins with
  uint32_t num_nodes_ = 1;
};

}  // namespace dsv4
