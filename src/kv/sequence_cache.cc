#include "kv/sequence_cache.h"

#include <algorithm>

#include "base/str.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kDeviceSlabBytes = int64_t{32} << 20;  // a device's allocator is slow: many pages at once
constexpr int64_t kFirstTableEntries = 64;

}  // namespace

PagePool::PagePool(int64_t page_bytes, Device* device) : page_bytes_(page_bytes), device_(device) {
  if (device_ != nullptr) return;
  host_ = std::move(Device::Open("cpu")).value();
  device_ = host_.get();
}

PagePool::~PagePool() {
  for (void* slab : slabs_) device_->Free(slab);
}

uint8_t* PagePool::Allocate() {
  if (free_.empty()) {
    const int64_t stride = CeilDiv(page_bytes_, kAlignment) * kAlignment;
    int64_t count = device_->kind() == DeviceKind::kCpu ? 1 : std::max<int64_t>(1, kDeviceSlabBytes / stride);
    void* slab = device_->Allocate(count * stride);
    if (slab == nullptr && count > 1) slab = device_->Allocate((count = 1) * stride);
    if (slab == nullptr) return nullptr;
    slabs_.push_back(slab);
    for (int64_t i = count - 1; i >= 0; --i) free_.push_back(static_cast<uint8_t*>(slab) + i * stride);
  }
  uint8_t* page = free_.back();
  free_.pop_back();
  return page;
}

void PagePool::Free(uint8_t* page) { free_.push_back(page); }

Result<std::unique_ptr<SequenceCache>> SequenceCache::Create(const KvLayout& layout, PagePool& pool) {
  auto* fixed = static_cast<uint8_t*>(pool.device().Allocate(layout.fixed_bytes));
  if (fixed == nullptr) {
    return ResourceExhausted(StrCat("no memory for a sequence's ", layout.fixed_bytes, " bytes of window and compressor "
                                    "state; close other sessions"));
  }
  return std::unique_ptr<SequenceCache>(new SequenceCache(layout, pool, fixed));
}

SequenceCache::~SequenceCache() {
  Reset();
  pool_->device().Free(fixed_);
}

Status SequenceCache::Reserve(int64_t num_tokens) {
  if (layout_->page_bytes == 0) return {};
  const int64_t needed = CeilDiv(num_tokens, layout_->page_tokens);
  const size_t had = pages_.size();
  while (static_cast<int64_t>(pages_.size()) < needed) {
    uint8_t* page = pool_->Allocate();
    if (page == nullptr) {
      (void)UpdatePageTable(had);
      return ResourceExhausted(StrCat("no memory for KV pages at ", num_tokens, " tokens (", memory_bytes(),
                                      " bytes held); close other sessions or use a shorter context"));
    }
    pages_.push_back(page);
  }
  if (!UpdatePageTable(had)) return ResourceExhausted("no memory for a page table; close other sessions");
  return {};
}

bool SequenceCache::UpdatePageTable(size_t first_new) {
  if (OnHost() || first_new == pages_.size()) return true;
  Device& device = pool_->device();
  constexpr auto kEntry = static_cast<int64_t>(sizeof(uint8_t*));
  const auto count = static_cast<int64_t>(pages_.size());
  if (page_table_.bytes() < count * kEntry) {
    if (!page_table_.Allocate(device, std::max(2 * count, kFirstTableEntries) * kEntry)) return false;
    first_new = 0;
  }
  const auto first = static_cast<int64_t>(first_new);
  device.Upload(page_table_.data() + first * kEntry, pages_.data() + first, (count - first) * kEntry);
  return true;
}

void SequenceCache::Reset() {
  for (uint8_t* page : pages_) pool_->Free(page);
  pages_.clear();
}

}  // namespace dsv4
