// The KV memory of one sequence: its fixed block and its pages, taken from a pool as the sequence grows.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "dsv4/status.h"
#include "kv/layout.h"

namespace dsv4 {

// Pages of one size in a device's memory. Freed pages are kept for the next sequence.
class PagePool {
 public:
  // `device` outlives the pool; null: the host.
  explicit PagePool(int64_t page_bytes, Device* device = nullptr);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Null when the machine has no more memory.
  uint8_t* Allocate();
  void Free(uint8_t* page);
  int64_t page_bytes() const { return page_bytes_; }
  Device& device() const { return *device_; }

 private:
  int64_t page_bytes_;
  std::unique_ptr<Device> host_;  // when no device was given
  Device* device_;
  std::vector<uint8_t*> free_;
  std::vector<void*> slabs_;  // of one or more pages
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

  // Pointers of the device; good until the next Reserve.
  SequenceView View(int64_t start, int64_t begin, int64_t end) const {
    return {.start = start, .begin = begin, .end = end, .fixed = fixed_,
            .pages = OnHost() ? pages_.data() : reinterpret_cast<uint8_t* const*>(page_table_.data())};
  }
  int64_t memory_bytes() const {
    return layout_->fixed_bytes + static_cast<int64_t>(pages_.size()) * layout_->page_bytes;
  }

 private:
  SequenceCache(const KvLayout& layout, PagePool& pool, uint8_t* fixed)
      : layout_(&layout), pool_(&pool), fixed_(fixed) {}
  bool OnHost() const { return pool_->device().kind() == DeviceKind::kCpu; }
  bool UpdatePageTable(size_t first_new);

  const KvLayout* layout_;
  PagePool* pool_;
  uint8_t* fixed_;
  std::vector<uint8_t*> pages_;
  DeviceBuffer page_table_;  // pages_ where kernels read it; not on the host
};

}  // namespace dsv4
