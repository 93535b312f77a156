// Byte-pair encoding of one piece: repeatedly joins the neighbouring pair of lowest rank, the leftmost of several.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "dsv4/types.h"

namespace dsv4 {

// (left id, right id) -> rank and the id of the joined token. Immutable once filled.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;
    TokenId joined;
  };

  explicit MergeTable(size_t num_merges);

  // Returns false and changes nothing if the pair is present. Call at most num_merges times; ids must not be negative.
  bool Add(TokenId left, TokenId right, TokenId joined);

  // Null: the pair has no rank.
  const Merge* Find(TokenId left, TokenId right) const;

  TokenId joined(uint32_t rank) const { return joined_[rank]; }

 private:
  struct Slot {
    uint64_t pair = kEmpty;
    Merge merge{};
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};  // ids are not negative, so no pair has this value

  size_t SlotOf(uint64_t pair) const;

  std::vector<Slot> slots_;  // a power of two, at most half full; linear probing
  std::vector<TokenId> joined_;
};

// Scratch memory for one thread. Reuse it for all pieces of a text.
class BpeEncoder {
 public:
  // byte_ids: the token of each byte. Both arguments must outlive the encoder.
  BpeEncoder(const MergeTable& merges, const std::array<TokenId, 256>& byte_ids)
      : merges_(merges), byte_ids_(byte_ids) {}

  // Appends the tokens of `piece`, which has fewer than 2^32 - 1 bytes. O(n log n).
  void Encode(std::string_view piece, std::vector<TokenId>* ids);

 private:
  // The symbols form a linked list; a symbol that was joined into its left neighbour has id -1.
  struct Symbol {
    TokenId id;
    uint32_t previous;  // kNone at the left end
    uint32_t next;      // kNone at the right end
  };
  static constexpr uint32_t kNone = ~uint32_t{0};

  const MergeTable::Merge* MergeAt(uint32_t left) const;
  void Enqueue(uint32_t left);

  const MergeTable& merges_;
  const std::array<TokenId, 256>& byte_ids_;
  std::vector<Symbol> symbols_;
  std::vector<uint64_t> queue_;  // heap, smallest first: rank << 32 | position of the left symbol
};

}  // namespace dsv4
