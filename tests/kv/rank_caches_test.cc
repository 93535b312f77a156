#include "kv/rank_caches.h"

#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "support/cache_fixture.h"

namespace dsv4 {
namespace {

// The CPU's memory, with a limited number of blocks.
class ScarceDevice : public Device {
 public:
  explicit ScarceDevice(int blocks) : blocks_(blocks) {}
  int blocks_;

  DeviceKind kind() const override { return cpu_->kind(); }
  std::string name() const override { return cpu_->name(); }
  int64_t free_bytes() const override { return 0; }
  int64_t scratch_bytes() const override { return 0; }
  void* Allocate(int64_t bytes) override { return blocks_-- > 0 ? cpu_->Allocate(bytes) : nullptr; }
  void Free(void* p) override { cpu_->Free(p); }
  void* AllocateStaging(int64_t bytes) override { return cpu_->AllocateStaging(bytes); }
  void FreeStaging(void* p) override { cpu_->FreeStaging(p); }
  void Upload(void* dst, const void* src, int64_t bytes) override { cpu_->Upload(dst, src, bytes); }
  void Download(void* dst, const void* src, int64_t bytes) override { cpu_->Download(dst, src, bytes); }
  void DownloadLater(void* dst, const void* src, int64_t bytes) override { cpu_->DownloadLater(dst, src, bytes); }
  void CopyWithin(void* dst, const void* src, int64_t bytes) override { cpu_->CopyWithin(dst, src, bytes); }
  void CopyColumns(void* dst, const void* src, int64_t rows, int64_t bytes, int64_t stride) override {
    cpu_->CopyColumns(dst, src, rows, bytes, stride);
  }
  void Clear(void* dst, int64_t bytes) override { cpu_->Clear(dst, bytes); }
  Status Synchronize() override { return {}; }
  Status status() const override { return {}; }
  void Fail(const std::string&) override {}
  int64_t Mark() override { return 0; }
  Status Wait(int64_t) override { return {}; }
  bool Reached(int64_t) override { return true; }
  std::unique_ptr<Recording> Record(const std::function<void()>&) override { return nullptr; }
  Result<double> MeasureReadRate(ThreadPool* pool) override { return cpu_->MeasureReadRate(pool); }
  ExecContext Context(ThreadPool* pool, bool reference_ops) override { return cpu_->Context(pool, reference_ops); }

 private:
  std::unique_ptr<Device> cpu_ = std::move(Device::Open("cpu")).value();
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
