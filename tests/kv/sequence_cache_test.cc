#include "kv/sequence_cache.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/cache_fixture.h"

namespace dsv4 {
namespace {

std::unique_ptr<SequenceCache> NewCache(KvMemory& memory) {
  auto cache = SequenceCache::Create(memory);
  EXPECT_TRUE(cache.ok());
  return std::move(cache).value();
}

std::vector<uint8_t*> Pages(const SequenceCache& cache, int64_t count) {
  const SequenceView v = cache.View(0, 0, 0);
  return {v.pages, v.pages + count};
}

TEST(SequenceCache, GrowsByPagesAndNeverMovesThem) {
  const KvLayout layout = MakeKvLayout(test::TinyKvSpec({0, 4, 128}));
  KvMemory memory(layout);
  const auto cache = NewCache(memory);
  EXPECT_EQ(cache->memory_bytes(), layout.fixed_bytes);
  ASSERT_TRUE(cache->Reserve(0).ok());
  EXPECT_EQ(cache->memory_bytes(), layout.fixed_bytes);
  for (const auto& [tokens, pages] :
       {std::pair<int64_t, int64_t>{1, 1}, {256, 1}, {257, 2}, {100, 2}, {2560, 10}, {2561, 11}}) {
    ASSERT_TRUE(cache->Reserve(tokens).ok());
    EXPECT_EQ(cache->memory_bytes(), layout.fixed_bytes + pages * layout.page_bytes) << tokens;
  }
  const std::vector<uint8_t*> before = Pages(*cache, 11);
  for (uint8_t* page : before) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(page) % 64, 0u);
    std::memset(page, 7, static_cast<size_t>(layout.page_bytes));  // the cache owns the whole page
  }
  ASSERT_TRUE(cache->Reserve(100000).ok());
  EXPECT_EQ(Pages(*cache, 11), before);
  EXPECT_EQ(before[10][layout.page_bytes - 1], 7);
  const SequenceView v = cache->View(5, 1, 3);
  EXPECT_EQ(v.start, 5);
  EXPECT_EQ(v.begin, 1);
  EXPECT_EQ(v.end, 3);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(v.fixed) % 64, 0u);
  std::memset(v.fixed, 7, static_cast<size_t>(layout.fixed_bytes));
}

TEST(SequenceCache, ResetGivesPagesToTheNextSequence) {
  const KvLayout layout = MakeKvLayout(test::TinyKvSpec({128}));
  KvMemory memory(layout);
  const auto first = NewCache(memory);
  const auto second = NewCache(memory);
  ASSERT_TRUE(first->Reserve(1000).ok());
  std::vector<uint8_t*> pages = Pages(*first, 4);
  first->Reset();
  EXPECT_EQ(first->memory_bytes(), layout.fixed_bytes);
  ASSERT_TRUE(second->Reserve(1000).ok());
  std::vector<uint8_t*> reused = Pages(*second, 4);
  std::sort(pages.begin(), pages.end());
  std::sort(reused.begin(), reused.end());
  EXPECT_EQ(reused, pages);
  ASSERT_TRUE(first->Reserve(300).ok());  // usable again, with new pages
  for (uint8_t* page : Pages(*first, 2)) EXPECT_FALSE(std::binary_search(pages.begin(), pages.end(), page));
}

TEST(SequenceCache, ManySequencesShareNothing) {
  const KvLayout layout = MakeKvLayout(test::TinyKvSpec({4, 0}));
  KvMemory memory(layout);
  std::vector<std::unique_ptr<SequenceCache>> caches;
  std::set<uint8_t*> seen;
  for (int i = 0; i < 20; ++i) {
    caches.push_back(NewCache(memory));
    ASSERT_TRUE(caches.back()->Reserve(1 + 100 * i).ok());
    if (i % 3 == 2) caches[static_cast<size_t>(i) / 2]->Reset();
  }
  for (const auto& cache : caches) {
    const int64_t count = (cache->memory_bytes() - layout.fixed_bytes) / layout.page_bytes;
    for (uint8_t* page : Pages(*cache, count)) EXPECT_TRUE(seen.insert(page).second);
    EXPECT_TRUE(seen.insert(cache->View(0, 0, 0).fixed).second);
  }
}

TEST(SequenceCache, SlidingLayersNeedNoPages) {
  const KvLayout layout = MakeKvLayout(test::TinyKvSpec({0, 0}));
  KvMemory memory(layout);
  const auto cache = NewCache(memory);
  ASSERT_TRUE(cache->Reserve(1'000'000).ok());
  EXPECT_EQ(cache->memory_bytes(), layout.fixed_bytes);
}

TEST(SequenceCache, ForksShareWholePagesAndCopyTheRest) {
  const KvLayout layout = MakeKvLayout(test::TinyKvSpec({4, 128}));
  KvMemory memory(layout);
  auto first = NewCache(memory);
  ASSERT_TRUE(first->Reserve(900).ok());
  for (uint8_t* page : first->pages()) std::memset(page, 5, static_cast<size_t>(layout.page_bytes));
  std::memset(first->fixed(), 6, static_cast<size_t>(layout.fixed_bytes));
  const int64_t alone = memory.bytes_in_use();
  EXPECT_EQ(alone, layout.fixed_bytes + 4 * layout.page_bytes);
  auto at_page = std::move(first->Fork(512)).value();
  EXPECT_EQ(at_page->pages(), Pages(*first, 2));
  EXPECT_EQ(memory.bytes_in_use(), alone + layout.fixed_bytes);
  EXPECT_EQ(at_page->own_bytes(), layout.fixed_bytes);
  auto inside = std::move(first->Fork(600)).value();
  ASSERT_EQ(inside->pages().size(), 3u);
  EXPECT_EQ(Pages(*inside, 2), Pages(*first, 2));
  EXPECT_NE(inside->pages()[2], first->pages()[2]);
  EXPECT_EQ(inside->pages()[2][layout.page_bytes - 1], 5);
  EXPECT_EQ(inside->fixed()[layout.fixed_bytes - 1], 6);
  EXPECT_EQ(inside->own_bytes(), layout.fixed_bytes + layout.page_bytes);
  EXPECT_EQ(first->unforked_bytes(), layout.fixed_bytes + 2 * layout.page_bytes);
  // Neither cache sees the later writes of the other.
  ASSERT_TRUE(inside->Reserve(1000).ok());
  std::memset(inside->pages()[2], 9, static_cast<size_t>(layout.page_bytes));
  std::memset(inside->fixed(), 9, static_cast<size_t>(layout.fixed_bytes));
  EXPECT_EQ(first->pages()[2][0], 5);
  EXPECT_EQ(first->fixed()[0], 6);
  // Pages outlive the sequence that wrote them as long as they have an owner.
  first.reset();
  at_page.reset();
  EXPECT_EQ(inside->pages()[0][0], 5);
  EXPECT_EQ(inside->own_bytes(), memory.bytes_in_use());
  inside->Reset();
  EXPECT_EQ(memory.bytes_in_use(), layout.fixed_bytes);
  inside.reset();
  EXPECT_EQ(memory.bytes_in_use(), 0);
}

TEST(PagePool, KeepsWhatIsFreed) {
  const auto device = std::move(Device::Open("cpu")).value();
  PagePool pool(1000, *device);
  uint8_t* a = pool.Allocate();
  uint8_t* b = pool.Allocate();
  EXPECT_NE(a, b);
  EXPECT_EQ(pool.bytes_kept(), 0);
  pool.Free(a);
  EXPECT_EQ(pool.bytes_in_use(), 1000);
  EXPECT_EQ(pool.bytes_kept(), 1000);
  EXPECT_EQ(pool.Allocate(), a);
  EXPECT_EQ(pool.bytes_kept(), 0);
  pool.AddOwner(a);
  pool.Free(a);
  EXPECT_EQ(pool.bytes_in_use(), 2000);  // the other owner still has it
  pool.Free(a);
  EXPECT_EQ(pool.bytes_in_use(), 1000);
  pool.Free(b);  // the pool frees both at its destruction (AddressSanitizer checks)
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their allocators abort instead

TEST(SequenceCache, AFullMachineIsAnErrorAndKeepsWhatWasThere) {
  KvLayout layout = MakeKvLayout(test::TinyKvSpec({128}));
  layout.page_bytes = int64_t{1} << 60;
  KvMemory memory(layout);
  const auto cache = NewCache(memory);
  const Status status = cache->Reserve(100);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("100 tokens"), std::string::npos) << status.message();
  EXPECT_EQ(cache->memory_bytes(), layout.fixed_bytes);
  layout.fixed_bytes = int64_t{1} << 60;
  KvMemory none(layout);
  EXPECT_EQ(SequenceCache::Create(none).status().code(), StatusCode::kResourceExhausted);
}

#endif

}  // namespace
}  // namespace dsv4
