// The KV memory of one sequence: its fixed block and its pages, taken from a pool as the sequence grows.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dsv4/status.h"
#include "kv/layout.h"

namespace dsv4 {

// Pages of one size. Freed pages are kept for the next sequence.
class PagePool {
 public:
  explicit PagePool(int64_t page_bytes) : page_bytes_(page_bytes) {}
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Null when the machine has no more memory.
  uint8_t* Allocate();
  void Free(uint8_t* page);
  int64_t page_bytes() const { return page_bytes_; }

 private:
  int64_t page_bytes_;
  std::vector<uint8_t*> free_;
};

class SequenceCache {
 public:
  // `layout` and `pool` outlive the cache.
  static Result<std::unique_ptr<SequenceCache>> Create(const KvLayout& layout, PagePool& pool);
  ~SequenceCache();
  SequenceCache(const SequenceCache&) = delete;
  SequenceCache& operator=(const SequenceCache&) = delete;

  // Pages for positions [0, num_tokens). On an error (no memory) what was there stays.
  Status Reserve(int64_t num_tokens);

  // Forgets everything: pages go back to the pool. Rings and states need no clearing: nothing reads a slot that the
  // sequence has not written (ops count positions from 0).
  void Reset();

  SequenceView View(int64_t start, int64_t begin, int64_t end) const {
    return {.start = start, .begin = begin, .end = end, .fixed = fixed_, .pages = pages_.data()};
  }
  int64_t memory_bytes() const {
    return layout_->fixed_bytes + static_cast<int64_t>(pages_.size()) * layout_->page_bytes;
  }

 private:
  SequenceCache(const KvLayout& layout, PagePool& pool, uint8_t* fixed)
      : layout_(&layout), pool_(&pool), fixed_(fixed) {}

  const KvLayout* layout_;
  PagePool* pool_;
  uint8_t* fixed_;
  std::vector<uint8_t*> pages_;
};

}  // namespace dsv4
