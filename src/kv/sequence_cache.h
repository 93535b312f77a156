// The KV memory of sequences: a fixed block each, and pages taken from a pool as they grow. Whole pages never change
// again, so sequences that begin alike share them.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "device/device.h"
#include "dsv4/status.h"
#include "kv/layout.h"

namespace dsv4 {

// Blocks of one size in a device's memory, each with one or more owners. Freed blocks are kept for the next sequence.
class PagePool {
 public:
  // `device` outlives the pool.
  PagePool(int64_t page_bytes, Device& device);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // A block with one owner; null when the machine has no more memory.
  uint8_t* Allocate();
  void AddOwner(uint8_t* page) { ++more_owners_[page]; }
  bool IsShared(uint8_t* page) const { return more_owners_.contains(page); }
  // One owner less; free when there is none left.
  void Free(uint8_t* page);

  int64_t page_bytes() const { return page_bytes_; }
  int64_t bytes_in_use() const { return num_in_use_ * page_bytes_; }
  int64_t bytes_kept() const { return static_cast<int64_t>(free_.size()) * page_bytes_; }  // for the next sequences
  Device& device() const { return *device_; }

 private:
  int64_t page_bytes_;
  Device* device_;
  int64_t num_in_use_ = 0;
  std::vector<uint8_t*> free_;
  std::unordered_map<uint8_t*, int64_t> more_owners_;  // beyond the first
  std::vector<void*> slabs_;                           // of one or more blocks
};

// What sequences of one layout take their memory from.
struct KvMemory {
  // `d` outlives it; null: the host.
  explicit KvMemory(KvLayout l, Device* d = nullptr);

  int64_t bytes_in_use() const { return fixed.bytes_in_use() + pages.bytes_in_use(); }
  int64_t bytes_kept() const { return fixed.bytes_kept() + pages.bytes_kept(); }

  std::unique_ptr<Device> host;  // when no device was given
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

  // Another cache of the `num_tokens` tokens that this one holds: the pages that they fill are shared, the one that is
  // being filled and the fixed block are copied. Both may go on.
  Result<std::unique_ptr<SequenceCache>> Fork(int64_t num_tokens);

  // Pages for positions [0, num_tokens). On an error (no memory) what was there stays.
  Status Reserve(int64_t num_tokens);

  // Forgets the rows behind `num_tokens` tokens. A page that others own too and that would be written again becomes the
  // cache's own. On an error (no memory) what was there stays.
  Status Truncate(int64_t num_tokens);

  // Forgets everything: pages go back to the pool. Rings and states need no clearing: nothing reads a slot that the
  // sequence has not written (ops count positions from 0).
  void Reset();

  // Pointers of the device; good until the next Reserve.
  SequenceView View(int64_t start, int64_t begin, int64_t end) const {
    return {.start = start,
            .begin = begin,
            .end = end,
            .fixed = fixed_,
            .pages = OnHost() ? pages_.data() : reinterpret_cast<uint8_t* const*>(page_table_.data())};
  }

  uint8_t* fixed() const { return fixed_; }
  const std::vector<uint8_t*>& pages() const { return pages_; }  // pointers of the device

  // Everything that it refers to.
  int64_t memory_bytes() const { return BytesOf(static_cast<int64_t>(pages_.size())); }
  // Without the pages that came from a fork or went into one.
  int64_t unforked_bytes() const { return BytesOf(static_cast<int64_t>(pages_.size()) - num_forked_); }
  // What would come free with it.
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
  int64_t num_forked_ = 0;   // the first so many pages have, or had, other owners
  DeviceBuffer page_table_;  // pages_ where kernels read it; not on the host
  size_t num_in_table_ = 0;
};

}  // namespace dsv4
