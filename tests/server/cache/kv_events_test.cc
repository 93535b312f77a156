#include "server/cache/kv_events.h"

#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace dsv4::server {

namespace {

using TokenIds = std::vector<TokenId>;

TokenIds CountingIds(size_t n, TokenId first = 0) {
  TokenIds ids(n);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

class KvBlocksTest : public ::testing::Test {
 protected:
  // Returns the events since the last call.
  std::vector<Json> Take() { return std::exchange(events_, {}); }

  std::vector<Json> events_;
  KvBlocks blocks_{[this](const Json& events) {
    for (const Json& event : events) events_.push_back(event);
  }};
};

TEST_F(KvBlocksTest, WholeBlocksAreStoredOnceAndGoWithTheLastCut) {
  const TokenIds ids = CountingIds(700);
  blocks_.Kept(CutPlace::kMemory, std::span(ids).first(255));
  EXPECT_TRUE(Take().empty());
  blocks_.Kept(CutPlace::kMemory, std::span(ids).first(300));
  std::vector<Json> events = Take();
  ASSERT_EQ(events.size(), 1u);
  const Json first = events[0];
  EXPECT_EQ(first[0], "BlockStored");
  ASSERT_EQ(first[1].size(), 1u);
  EXPECT_TRUE(first[2].is_null());
  EXPECT_EQ(first[3], Json(CountingIds(256)));
  EXPECT_EQ(first[4], 256);
  EXPECT_TRUE(first[5].is_null());
  EXPECT_EQ(first[6], "gpu");

  blocks_.Kept(CutPlace::kMemory, ids);  // one block more
  events = Take();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0][1].size(), 1u);
  EXPECT_EQ(events[0][2], first[1][0]);
  EXPECT_EQ(events[0][3], Json(CountingIds(256, 256)));

  blocks_.Dropped(CutPlace::kMemory, std::span(ids).first(300));
  EXPECT_TRUE(Take().empty());  // the longer prefix has this block, too
  const Json second = events[0];
  blocks_.Dropped(CutPlace::kMemory, ids);
  events = Take();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0], Json::array({"BlockRemoved", Json::array({first[1][0], second[1][0]}), "gpu"}));
}

// Slow readers have a number of messages queued, so no message may be large.
TEST_F(KvBlocksTest, LongCutsAreToldInPieces) {
  const TokenIds ids = CountingIds(2000 * 256);
  blocks_.Kept(CutPlace::kMemory, ids);
  std::vector<Json> events = Take();
  TokenIds told;
  Json parent = nullptr, names = Json::array();
  for (const Json& event : events) {
    EXPECT_LE(Json::to_msgpack(event).size(), 25000u);
    EXPECT_EQ(event[2], parent);
    parent = event[1].back();
    names.insert(names.end(), event[1].begin(), event[1].end());
    for (const Json& id : event[3]) told.push_back(id.get<TokenId>());
  }
  EXPECT_EQ(told, ids);
  EXPECT_EQ(names.size(), 2000u);
  blocks_.Dropped(CutPlace::kMemory, ids);
  Json gone = Json::array();
  for (const Json& event : Take()) {
    EXPECT_LE(Json::to_msgpack(event).size(), 25000u);
    gone.insert(gone.end(), event[1].begin(), event[1].end());
  }
  EXPECT_EQ(gone, names);
}

TEST_F(KvBlocksTest, HashesStandForAllThatComesBefore) {
  TokenIds a = CountingIds(512), b = a;
  b[0] = 9;
  blocks_.Kept(CutPlace::kMemory, a);
  blocks_.Kept(CutPlace::kMemory, b);
  const std::vector<Json> events = Take();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_NE(events[0][1][0], events[1][1][0]);
  EXPECT_NE(events[0][1][1], events[1][1][1]);
}

TEST_F(KvBlocksTest, PlacesAreApartAndClearedTogether) {
  const TokenIds ids = CountingIds(256);
  blocks_.Kept(CutPlace::kMemory, ids);
  blocks_.Kept(CutPlace::kDisk, ids);
  std::vector<Json> events = Take();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1][6], "cpu");
  EXPECT_EQ(events[0][1], events[1][1]);
  blocks_.Dropped(CutPlace::kMemory, ids);
  EXPECT_EQ(Take()[0][2], "gpu");
  blocks_.Cleared();
  EXPECT_EQ(Take()[0], Json::array({"AllBlocksCleared"}));
  blocks_.Kept(CutPlace::kDisk, ids);
  EXPECT_EQ(Take().size(), 1u);
}

}  // namespace

}  // namespace dsv4::server
