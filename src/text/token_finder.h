// Finds added tokens in text by their spelling.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>

#include "dsv4/types.h"

namespace dsv4 {

class TokenFinder {
 public:
  // Spellings must not be empty and must be unique.
  void Add(std::string_view spelling, TokenId id);

  struct Match {
    size_t begin;
    size_t end;
    TokenId id;  // -1: no match up to the end of the text
  };

  // Returns the leftmost match at or after `from`; the longest of several that begin there.
  Match Find(std::string_view text, size_t from) const;

 private:
  // A trie. Edges are keyed by node << 8 | byte; the root is node 0.
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::unordered_map<uint32_t, TokenId> ids_;  // ids of the nodes where a spelling ends
  std::array<bool, 256> starts_{};             // first bytes of the spellings
  uint32_t num_nodes_ = 1;
};

}  // namespace dsv4
