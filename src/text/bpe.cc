#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/check.h"

namespace dsv4 {

namespace {

uint64_t PairKey(TokenId left, TokenId right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(size_t num_merges) : slots_(std::bit_ceil(2 * num_merges + 2)) { joined_.reserve(num_merges); }

size_t MergeTable::SlotOf(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  uint64_t hash = pair * 0x9E3779B97F4A7C15u;  // 2^64 over the golden ratio
  hash ^= hash >> 32;
  size_t slot = static_cast<size_t>(hash) & mask;
  while (slots_[slot].pair != pair && slots_[slot].pair != kEmpty) slot = (slot + 1) & mask;
  return slot;
}

bool MergeTable::Add(TokenId left, TokenId right, TokenId joined) {
  DSV4_CHECK(2 * joined_.size() < slots_.size());
  Slot& slot = slots_[SlotOf(PairKey(left, right))];
  if (slot.pair != kEmpty) return false;
  slot = {PairKey(left, right), {static_cast<uint32_t>(joined_.size()), joined}};
  joined_.push_back(joined);
  return true;
}

const MergeTable::Merge* MergeTable::Find(TokenId left, TokenId right) const {
  const Slot& slot = slots_[SlotOf(PairKey(left, right))];
  return slot.pair == kEmpty ? nullptr : &slot.merge;
}

const MergeTable::Merge* BpeEncoder::MergeAt(uint32_t left) const {
  const Symbol& symbol = symbols_[left];
  return symbol.next == kNone ? nullptr : merges_.Find(symbol.id, symbols_[symbol.next].id);
}

void BpeEncoder::Enqueue(uint32_t left) {
  const MergeTable::Merge* merge = MergeAt(left);
  if (merge != nullptr) queue_.push_back(static_cast<uint64_t>(merge->rank) << 32 | left);
}

void BpeEncoder::Encode(std::string_view piece, std::vector<TokenId>* ids) {
  DSV4_CHECK(piece.size() < kNone, "piece of ", piece.size(), " bytes");
  const auto n = static_cast<uint32_t>(piece.size());
  symbols_.resize(n);
  for (uint32_t i = 0; i < n; ++i) {
    symbols_[i] = {byte_ids_[static_cast<unsigned char>(piece[i])], i - 1, i + 1 < n ? i + 1 : kNone};
  }
  queue_.clear();
  for (uint32_t i = 0; i + 1 < n; ++i) Enqueue(i);
  std::make_heap(queue_.begin(), queue_.end(), std::greater<>());

  const auto push = [&](uint32_t left) {
    const size_t before = queue_.size();
    Enqueue(left);
    if (queue_.size() != before) std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
  };
  while (!queue_.empty()) {
    std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
    const auto at = static_cast<uint32_t>(queue_.back());
    const TokenId joined = merges_.joined(static_cast<uint32_t>(queue_.back() >> 32));
    queue_.pop_back();
    Symbol& left = symbols_[at];
    if (left.id < 0) continue;
    // An entry may be older than its symbols. It is valid if they still join to the same token.
    const MergeTable::Merge* merge = MergeAt(at);
    if (merge == nullptr || merge->joined != joined) continue;
    Symbol& right = symbols_[left.next];
    left.id = joined;
    left.next = right.next;
    right.id = -1;
    if (left.next != kNone) {
      symbols_[left.next].previous = at;
      push(at);
    }
    if (left.previous != kNone) push(left.previous);
  }
  for (uint32_t i = 0; i < n; i = symbols_[i].next) {
    ids->push_back(symbols_[i].id);
    if (symbols_[i].next == kNone) break;
  }
}

}  // namespace dsv4
