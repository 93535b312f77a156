#include "kv/sequence_cache.h"

#include <cstdlib>

#include "base/str.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

constexpr int64_t kAlignment = 64;

uint8_t* AllocateAligned(int64_t bytes) {
  const int64_t rounded = CeilDiv(bytes > 0 ? bytes : 1, kAlignment) * kAlignment;
  return static_cast<uint8_t*>(std::aligned_alloc(kAlignment, static_cast<size_t>(rounded)));
}

}  // namespace

PagePool::~PagePool() {
  for (uint8_t* page : free_) std::free(page);
}

uint8_t* PagePool::Allocate() {
  if (free_.empty()) return AllocateAligned(page_bytes_);
  uint8_t* page = free_.back();
  free_.pop_back();
  return page;
}

void PagePool::Free(uint8_t* page) { free_.push_back(page); }

Result<std::unique_ptr<SequenceCache>> SequenceCache::Create(const KvLayout& layout, PagePool& pool) {
  uint8_t* fixed = AllocateAligned(layout.fixed_bytes);
  if (fixed == nullptr) {
    return ResourceExhausted(StrCat("no memory for a sequence's ", layout.fixed_bytes, " bytes of window and compressor "
                                    "state; close other sessions"));
  }
  return std::unique_ptr<SequenceCache>(new SequenceCache(layout, pool, fixed));
}

SequenceCache::~SequenceCache() {
  Reset();
  std::free(fixed_);
}

Status SequenceCache::Reserve(int64_t num_tokens) {
  if (layout_->page_bytes == 0) return {};
  const int64_t needed = CeilDiv(num_tokens, layout_->page_tokens);
  while (static_cast<int64_t>(pages_.size()) < needed) {
    uint8_t* page = pool_->Allocate();
    if (page == nullptr) {
      return ResourceExhausted(StrCat("no memory for KV pages at ", num_tokens, " tokens (", memory_bytes(),
                                      " bytes held); close other sessions or use a shorter context"));
    }
    pages_.push_back(page);
  }
  return {};
}

void SequenceCache::Reset() {
  for (uint8_t* page : pages_) pool_->Free(page);
  pages_.clear();
}

}  // namespace dsv4
