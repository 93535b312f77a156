// The KV memory of sequences: one fixed block each, and pages from a pool as they grow. Whole pages never change again,
// so sequences with a common prefix share them.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "device/device.h"
#include "dsv4/status.h"
#include "kv/layout.h"

namespace dsv4 {

// Blocks of one size in a device's memory, each with one or more owners. Freed blocks are kept for later sequences.
class PagePool {
 public:
  // `device` outlives the pool.
  PagePool(int64_t page_bytes, Device& device);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Returns a block with one owner; null: no memory.
  uint8_t* Allocate();
  void AddOwner(uint8_t* page) { ++more_owners_[page]; }
  bool IsShared(uint8_t* page) const { return more_owners_.contains(page); }
  // Removes one owner. Frees the block if none is left.
  void Free(uint8_t* page);

  int64_t page_bytes() const { return page_bytes_; }
  int64_t bytes_in_use() const { return num_in_use_ * page_bytes_; }
  int64_t bytes_kept() const { return static_cast<int64_t>(free_.size()) * page_bytes_; }  // for later sequences
  Device& device() const { return *device_; }

 private:
  int64_t page_bytes_;
  Device* device_;
  int64_t num_in_use_ = 0;
  std::vector<uint8_t*> free_;
  std::unordered_map<uint8_t*, int64_t> more_owners_;  // beyond the first
  std::vector<void*> slabs_;                           // of one or more blocks
};

// The memory that sequences of one layout use.
struct KvMemory {
  // `d` outlives it; null: host memory.
  explicit KvMemory(KvLayout l, Device* d = nullptr);

  int64_t bytes_in_use() const { return fixed.bytes_in_use() + pages.bytes_in_use(); }
  int64_t bytes_kept() const { return fixed.bytes_kept() + pages.bytes_kept(); }

  std::unique_ptr<Device> host;  // set if no device was given
  KvLayout layout;
  PagePool fixed, pages;
};

class SequenceCache {
 public:
  // `memory` outlives the cache.
  static Result<std::unique_ptr<SequenceCache>> Create(KvMemory& memory);
  ~SequenceCache();
  SequenceCache(const SequenceCache&) = delete;
  SequenceCache& operator=(const SequenceCache&) = delete;

  // Returns another cache of the first `num_tokens` tokens. It shares the pages that they fill, and copies the page
  // that is being filled and the fixed block. Both caches may grow.
  Result<std::unique_ptr<SequenceCache>> Fork(int64_t num_tokens);

  // Allocates pages for positions [0, num_tokens). On an error (no memory) nothing changes.
  Status Reserve(int64_t num_tokens);

  // Drops the rows after `num_tokens` tokens. If another cache shares a page that would be written again, this cache
  // gets its own copy of it. On an error (no memory) nothing changes.
  Status Truncate(int64_t num_tokens);

  // Drops all tokens: pages return to the pool. Rings and states are not cleared: ops count positions from 0 and read
  // only slots that the sequence has written.
  void Reset();

  // Device pointers; valid until the next Reserve.
  SequenceView View(int64_t start, int64_t begin, int64_t end) const {
    return {.start = start,
            .begin = begin,
            .end = end,
            .fixed = fixed_,
            .pages = OnHost() ? pages_.data() : reinterpret_cast<uint8_t* const*>(page_table_.data())};
  }

  uint8_t* fixed() const { return fixed_; }
  const std::vector<uint8_t*>& pages() const { return pages_; }  // device pointers

  // Bytes of everything that the cache refers to.
  int64_t memory_bytes() const { return BytesOf(static_cast<int64_t>(pages_.size())); }
  // The same without pages that came from a fork or were passed to one.
  int64_t unforked_bytes() const { return BytesOf(static_cast<int64_t>(pages_.size()) - num_forked_); }
  // Bytes that destroying it would free.
  int64_t own_bytes() const;

 private:
  SequenceCache(KvMemory& memory, uint8_t* fixed) : memory_(&memory), fixed_(fixed) {}
  bool OnHost() const { return memory_->pages.device().kind() == DeviceKind::kCpu; }
  int64_t BytesOf(int64_t num_pages) const {
    return memory_->layout.fixed_bytes + num_pages * memory_->layout.page_bytes;
  }
  bool UpdatePageTable();

  KvMemory* memory_;
  uint8_t* fixed_;
  std::vector<uint8_t*> pages_;
  int64_t num_forked_ = 0;   // the first num_forked_ pages have, or had, other owners
  DeviceBuffer page_table_;  // pages_ in memory that kernels read; not used on the host
  size_t num_in_table_ = 0;
};

}  // namespace dsv4
