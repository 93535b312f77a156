// Snapshots of one timeline store their common ids once.
#include "engine/sessions/kept_tokens.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <numeric>
#include <random>

#include "dsv4/snapshot.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

using Kept = std::shared_ptr<const KeptTokens>;

// 0 if a memory checker replaces the allocator.
int64_t HeapBytes() {
#ifdef __GLIBC__
  const struct mallinfo2 heap = ::mallinfo2();
  return static_cast<int64_t>(heap.uordblks + heap.hblkhd);
#else
  return 0;
#endif
}

TEST(KeptTokens, AnyTreeOfTimelinesHasItsIds) {
  std::mt19937 random(5);
  std::vector<std::pair<Kept, std::vector<TokenId>>> kept = {{nullptr, {}}};
  for (int i = 0; i < 3000; ++i) {
    if (kept.size() > 50) kept.erase(kept.begin() + 1 + static_cast<std::ptrdiff_t>(random() % 50));
    auto [before, ids] = kept[random() % kept.size()];
    const size_t common = ids.size() - std::min<size_t>(ids.size(), random() % 9);  // some are removed
    ids.resize(common);
    for (size_t more = random() % 30; more > 0; --more) ids.push_back(static_cast<TokenId>(random() % 1000));
    const Kept now = KeptTokens::Of(before, common, ids);
    ASSERT_EQ(now->size(), ids.size());
    ASSERT_EQ(now->Copy(), ids);
    kept.emplace_back(now, ids);
  }
  for (const auto& [tokens, ids] : kept) EXPECT_TRUE(tokens == nullptr || tokens->Copy() == ids);
}

TEST(KeptTokens, ManyOfOneTimelineTakeTheMemoryOfItsIds) {
  constexpr size_t kTokens = 1 << 20, kInterval = 4096;
  std::vector<TokenId> ids(kTokens);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<Kept> cuts;
  cuts.reserve(2 * kTokens / kInterval);
  const int64_t before = HeapBytes();
  Kept last;
  for (size_t at = kInterval; at <= kTokens; at += kInterval) {
    last = KeptTokens::Of(last, last == nullptr ? 0 : last->size(), std::span(ids).first(at));
    cuts.push_back(last);
    cuts.push_back(KeptTokens::Of(last, at, std::span(ids).first(at)));  // the same list again
    EXPECT_EQ(cuts.back(), last);
  }
  const auto one = static_cast<int64_t>(kTokens * sizeof(TokenId));
  EXPECT_LT(HeapBytes() - before, one + one / 8);  // 128 times as much if each were stored whole
  EXPECT_EQ(last->Copy(), ids);
  cuts.erase(cuts.begin(), cuts.begin() + static_cast<std::ptrdiff_t>(cuts.size() / 2));
  EXPECT_EQ(cuts.front()->Copy().size(), kTokens / 2 + kInterval);
}

TEST(KeptTokens, TheEndOfALongTimelineTakesNoStack) {
  std::vector<TokenId> ids(500'000);
  Kept last;
  for (size_t at = 1; at <= ids.size(); ++at) last = KeptTokens::Of(last, at - 1, std::span(ids).first(at));
  EXPECT_EQ(last->size(), ids.size());
  last.reset();  // one stack frame per list would exceed the stack
}

TEST(KeptTokens, ASnapshotAddsWhatItsSessionReadSinceTheLastOne) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-nvfp4");
  EngineOptions options;
  options.model_dir = dir;
  options.num_threads = 2;
  const auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  const std::vector<TokenId> ids = SomeTokens(2003, 3, engine->info().vocab_size);
  auto session = std::move(engine->NewSession()).value();
  ASSERT_TRUE(session->Append(std::span(ids).first(2000), LogitRows::kNone, nullptr).ok());
  const auto first = std::move(session->Snapshot()).value();
  ASSERT_TRUE(session->Append(std::span(ids).subspan(2000, 1), LogitRows::kNone, nullptr).ok());
  auto branch = std::move(engine->NewSession(*first)).value();
  ASSERT_TRUE(branch->Append(std::span(ids).subspan(2001, 1), LogitRows::kNone, nullptr).ok());
  for (Session* one : {session.get(), branch.get()}) {
    const auto held = std::move(one->Snapshot()).value();
    (void)one->Snapshot();  // leaves KV memory that the next snapshot uses
    ASSERT_TRUE(one->Append(std::span(ids).subspan(2002, 1), LogitRows::kNone, nullptr).ok());
    const int64_t before = HeapBytes();
    const auto second = std::move(one->Snapshot()).value();
    EXPECT_LT(HeapBytes() - before, 3000) << "of 8 KB of ids";
    EXPECT_EQ(second->tokens(), one->tokens());
    EXPECT_EQ(second->num_tokens(), 2002);
  }
  // Removed and overwritten: the last ids of the first snapshot are no longer the session's.
  ASSERT_TRUE(session->Truncate(1997).ok());
  ASSERT_TRUE(session->Append(std::span(ids).subspan(2000, 3), LogitRows::kNone, nullptr).ok());
  EXPECT_EQ((*session->Snapshot())->tokens(), session->tokens());
  EXPECT_EQ(first->tokens(), std::vector<TokenId>(ids.begin(), ids.begin() + 2000));
}

}  // namespace
}  // namespace dsv4::test
