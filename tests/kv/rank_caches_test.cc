#include "kv/rank_caches.h"

#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "support/cache_fixture.h"
#include "support/cpu_backed_device.h"

namespace dsv4 {
namespace {

// The CPU's memory, with a limited number of blocks.
class ScarceDevice : public CpuBackedDevice {
 public:
  explicit ScarceDevice(int blocks) : blocks_(blocks) {}
  int blocks_;

  void* Allocate(int64_t bytes) override { return blocks_-- > 0 ? CpuBackedDevice::Allocate(bytes) : nullptr; }
};

struct TwoRanks {
  explicit TwoRanks(int blocks_of_second = 1000) : scarce(blocks_of_second), first(layout), second(layout, &scarce) {}
  KvLayout layout = MakeKvLayout(test::TinyKvSpec({0, 4, 128}));
  ScarceDevice scarce;
  KvMemory first, second;
  KvMemory* memories[2] = {&first, &second};
};

TEST(RankCaches, EveryRankHasPagesOfItsOwn) {
  TwoRanks ranks;
  auto caches = RankCaches::Create(ranks.memories);
  ASSERT_TRUE(caches.ok());
  RankCaches& c = **caches;
  ASSERT_TRUE(c.Reserve(600).ok());
  ASSERT_EQ(c.count(), 2);
  ASSERT_EQ(c.of(0).pages().size(), 3u);
  ASSERT_EQ(c.of(1).pages().size(), 3u);
  EXPECT_NE(c.of(0).pages()[0], c.of(1).pages()[0]);
  EXPECT_EQ(c.memory_bytes(), 2 * c.of(0).memory_bytes());
  EXPECT_EQ(c.unforked_bytes(), 2 * c.of(0).unforked_bytes());
  EXPECT_EQ(c.own_bytes(), 2 * c.of(0).own_bytes());
  c.Reset();
  EXPECT_EQ(c.memory_bytes(), 2 * ranks.layout.fixed_bytes);
}

TEST(RankCaches, ForksShareWholePagesOnEveryRank) {
  TwoRanks ranks;
  auto caches = RankCaches::Create(ranks.memories);
  ASSERT_TRUE(caches.ok() && (*caches)->Reserve(300).ok());
  for (int r = 0; r < 2; ++r)
    std::memset((*caches)->of(r).pages()[1], 10 + r, static_cast<size_t>(ranks.layout.page_bytes));
  auto fork = (*caches)->Fork(300);
  ASSERT_TRUE(fork.ok());
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ((*fork)->of(r).pages()[0], (*caches)->of(r).pages()[0]);
    EXPECT_NE((*fork)->of(r).pages()[1], (*caches)->of(r).pages()[1]);
    EXPECT_EQ((*fork)->of(r).pages()[1][0], 10 + r);
  }
}

// One rank without memory: the call fails on all; the memory of the others is returned or serves the next attempt.
TEST(RankCaches, AnErrorOfOneRankIsEveryRanks) {
  TwoRanks none(0);
  EXPECT_EQ(RankCaches::Create(none.memories).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(none.first.bytes_in_use(), 0);

  TwoRanks ranks(/*blocks_of_second=*/2);  // the fixed block and one page
  auto caches = RankCaches::Create(ranks.memories);
  ASSERT_TRUE(caches.ok() && (*caches)->Reserve(256).ok());
  EXPECT_EQ((*caches)->Fork(256).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(ranks.first.bytes_in_use(), ranks.layout.fixed_bytes + ranks.layout.page_bytes);
  EXPECT_EQ((*caches)->Reserve(257).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ((*caches)->of(1).pages().size(), 1u);
  ranks.scarce.blocks_ = 1;
  ASSERT_TRUE((*caches)->Reserve(257).ok());
  EXPECT_EQ((*caches)->of(0).pages().size(), 2u);
  EXPECT_EQ((*caches)->of(1).pages().size(), 2u);
}

}  // namespace
}  // namespace dsv4
