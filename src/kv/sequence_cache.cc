#include "kv/sequence_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/str.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

constexpr int64_t kPageAlignment = 256;
constexpr int64_t kDeviceSlabBytes = int64_t{32} << 20;  // device allocations are slow: many pages at once
constexpr int64_t kFirstTableEntries = 64;

}  // namespace

PagePool::PagePool(int64_t page_bytes, Device& device) : page_bytes_(page_bytes), device_(&device) {}

PagePool::~PagePool() {
  for (void* slab : slabs_) device_->Free(slab);
}

uint8_t* PagePool::Allocate() {
  if (free_.empty()) {
    const int64_t stride = CeilDiv(page_bytes_, kPageAlignment) * kPageAlignment;
    int64_t count = device_->kind() == DeviceKind::kCpu ? 1 : std::max<int64_t>(1, kDeviceSlabBytes / stride);
    void* slab = device_->Allocate(count * stride);
    if (slab == nullptr && count > 1) slab = device_->Allocate((count = 1) * stride);
    if (slab == nullptr) return nullptr;
    slabs_.push_back(slab);
    // bytes that no row covers are the same everywhere, in snapshots and on all ranks
    device_->Clear(slab, count * stride);
    for (int64_t i = count - 1; i >= 0; --i) free_.push_back(static_cast<uint8_t*>(slab) + i * stride);
  }
  uint8_t* page = free_.back();
  free_.pop_back();
  ++num_in_use_;
  return page;
}

void PagePool::Free(uint8_t* page) {
  if (const auto more = more_owners_.find(page); more != more_owners_.end()) {
    if (--more->second == 0) more_owners_.erase(more);
    return;
  }
  free_.push_back(page);
  --num_in_use_;
}

KvMemory::KvMemory(KvLayout l, Device* d)
    : host(d == nullptr ? std::move(Device::Open("cpu")).value() : nullptr),
      layout(std::move(l)),
      fixed(layout.fixed_bytes, d == nullptr ? *host : *d),
      pages(layout.page_bytes, d == nullptr ? *host : *d) {}

Result<std::unique_ptr<SequenceCache>> SequenceCache::Create(KvMemory& memory) {
  uint8_t* fixed = memory.fixed.Allocate();
  if (fixed == nullptr) {
    return ResourceExhausted(StrCat("no memory for a sequence's ", memory.layout.fixed_bytes,
                                    " bytes of window and compressor "
                                    "state; close other sessions"));
  }
  return std::unique_ptr<SequenceCache>(new SequenceCache(memory, fixed));
}

SequenceCache::~SequenceCache() {
  Reset();
  memory_->fixed.Free(fixed_);
}

Result<std::unique_ptr<SequenceCache>> SequenceCache::Fork(int64_t num_tokens) {
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<SequenceCache> fork, Create(*memory_));
  const KvLayout& layout = memory_->layout;
  Device& device = memory_->pages.device();
  if (layout.page_bytes > 0) {
    // A row is in the page of its last token, so pages whose tokens are all present are not written again.
    const int64_t whole = num_tokens / layout.page_tokens;
    DSV4_CHECK(CeilDiv(num_tokens, layout.page_tokens) <= static_cast<int64_t>(pages_.size()));
    if (num_tokens % layout.page_tokens != 0) {
      uint8_t* last = memory_->pages.Allocate();
      if (last == nullptr) return ResourceExhausted("no memory for a page of a copied sequence; close other sessions");
      device.CopyWithin(last, pages_[static_cast<size_t>(whole)], layout.page_bytes);
      fork->pages_.push_back(last);
    }
    fork->pages_.insert(fork->pages_.begin(), pages_.begin(), pages_.begin() + whole);
    for (int64_t i = 0; i < whole; ++i) memory_->pages.AddOwner(pages_[static_cast<size_t>(i)]);
    fork->num_forked_ = whole;
    num_forked_ = std::max(num_forked_, whole);
  }
  device.CopyWithin(fork->fixed_, fixed_, layout.fixed_bytes);
  return fork;
}

Status SequenceCache::Reserve(int64_t num_tokens) {
  const KvLayout& layout = memory_->layout;
  if (layout.page_bytes == 0) return {};
  const int64_t needed = CeilDiv(num_tokens, layout.page_tokens);
  while (static_cast<int64_t>(pages_.size()) < needed) {
    uint8_t* page = memory_->pages.Allocate();
    if (page == nullptr) {
      (void)UpdatePageTable();
      return ResourceExhausted(StrCat("no memory for KV pages at ", num_tokens, " tokens (", memory_bytes(),
                                      " bytes held); close other sessions or use a shorter context"));
    }
    pages_.push_back(page);
  }
  if (!UpdatePageTable()) return ResourceExhausted("no memory for a page table; close other sessions");
  return {};
}

Status SequenceCache::Truncate(int64_t num_tokens) {
  const KvLayout& layout = memory_->layout;
  if (layout.page_bytes == 0) return {};
  const auto kept = static_cast<size_t>(CeilDiv(num_tokens, layout.page_tokens));
  DSV4_CHECK(kept <= pages_.size());
  const bool partly = num_tokens % layout.page_tokens != 0;
  if (partly && memory_->pages.IsShared(pages_[kept - 1])) {
    uint8_t* own = memory_->pages.Allocate();
    if (own == nullptr) return ResourceExhausted("no memory to truncate a sequence: one page; close other sessions");
    memory_->pages.device().CopyWithin(own, pages_[kept - 1], layout.page_bytes);
    memory_->pages.Free(pages_[kept - 1]);
    pages_[kept - 1] = own;
    num_in_table_ = std::min(num_in_table_, kept - 1);
  }
  for (size_t i = kept; i < pages_.size(); ++i) memory_->pages.Free(pages_[i]);
  pages_.resize(kept);
  num_forked_ = std::min(num_forked_, num_tokens / layout.page_tokens);
  num_in_table_ = std::min(num_in_table_, kept);
  if (!UpdatePageTable()) return ResourceExhausted("no memory for a page table; close other sessions");
  return {};
}

bool SequenceCache::UpdatePageTable() {
  if (OnHost() || num_in_table_ == pages_.size()) return true;
  Device& device = memory_->pages.device();
  constexpr auto kEntry = static_cast<int64_t>(sizeof(uint8_t*));
  const auto count = static_cast<int64_t>(pages_.size());
  if (page_table_.bytes() < count * kEntry) {
    num_in_table_ = 0;
    if (!page_table_.Allocate(device, std::max(2 * count, kFirstTableEntries) * kEntry)) return false;
  }
  const auto first = static_cast<int64_t>(num_in_table_);
  device.Upload(page_table_.data() + first * kEntry, pages_.data() + first, (count - first) * kEntry);
  num_in_table_ = pages_.size();
  return true;
}

void SequenceCache::Reset() {
  for (uint8_t* page : pages_) memory_->pages.Free(page);
  pages_.clear();
  num_forked_ = 0;
  num_in_table_ = 0;
}

int64_t SequenceCache::own_bytes() const {
  return BytesOf(
      std::count_if(pages_.begin(), pages_.end(), [&](uint8_t* page) { return !memory_->pages.IsShared(page); }));
}

}  // namespace dsv4
