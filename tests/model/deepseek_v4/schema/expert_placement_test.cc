// Which experts are offloaded.
#include "model/deepseek_v4/schema/expert_placement.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/deepseek_v4/load/synthetic.h"
#include "model/deepseek_v4/load/synthetic_values.h"

namespace dsv4::deepseek_v4 {
namespace {

using Counts = std::vector<int64_t>;

TEST(ExpertPlacement, NothingMovesWhereEverythingFits) {
  const Counts bytes(3, 100);
  for (const int64_t overflow : {int64_t{0}, int64_t{-5}}) {
    const ExpertPlacement p = ExpertPlacement::Coldest(0, bytes, 4, overflow, {});
    EXPECT_FALSE(p.EmbeddingOnHost());
    EXPECT_FALSE(p.OnHost(2, 3));
    EXPECT_TRUE(p.CountByLayer().empty());
    EXPECT_EQ(HostBytesOfToken(p, bytes, 4, 2, {}), 0);
  }
}

TEST(ExpertPlacement, WithoutCountsLayersHaveAsMany) {
  const Counts bytes(5, 100);
  for (int64_t n = 1; n <= 40; ++n) {
    const ExpertPlacement p = ExpertPlacement::Coldest(0, bytes, 8, 100 * n - 1, {});
    const Counts by_layer = p.CountByLayer();
    EXPECT_EQ(std::accumulate(by_layer.begin(), by_layer.end(), int64_t{0}), n);
    for (const int64_t count : by_layer) EXPECT_TRUE(count == n / 5 || count == n / 5 + 1) << n;
    EXPECT_TRUE(p.OnHost(0, 7));
    EXPECT_EQ(p.OnHost(0, 0), n > 35);
    EXPECT_NEAR(HostBytesOfToken(p, bytes, 8, 2, {}), 200.0 * static_cast<double>(n) / 8, 1e-9);
  }
  const ExpertPlacement all = ExpertPlacement::Coldest(0, bytes, 8, 1'000'000, {});
  EXPECT_EQ(all.CountByLayer(), Counts(5, 8));
}

// The least chosen of the offloaded experts stay on the disk, the same number in every layer.
TEST(ExpertPlacement, WhatTheHostHasNoRoomForStaysOnTheDisk) {
  const Counts bytes(2, 100);
  const std::vector<uint64_t> counts = {9, 0, 5, 1, 40, 30, 3, 8};
  ExpertPlacement p = ExpertPlacement::Coldest(0, bytes, 4, 500, counts);
  EXPECT_EQ(p.CountByLayer(), (Counts{3, 2}));
  EXPECT_TRUE(p.DiskByLayer().empty());
  p.LeaveOnDisk(bytes, 150, counts);
  EXPECT_EQ(p.CountByLayer(), (Counts{2, 1}));
  EXPECT_EQ(p.DiskByLayer(), (Counts{1, 1}));
  EXPECT_TRUE(p.OnDisk(0, 1) && p.OnDisk(1, 2));
  EXPECT_TRUE(p.OnHost(0, 3) && p.OnHost(0, 2) && p.OnHost(1, 3));
  EXPECT_TRUE(p.OnDevice(0, 0) && !p.OnDevice(0, 1) && !p.OnDevice(0, 3));
  EXPECT_NEAR(DiskBytesOfToken(p, bytes, 4, 2, counts), 2 * 100 * (0.0 / 15 + 3.0 / 81), 1e-9);
  EXPECT_NEAR(HostBytesOfToken(p, bytes, 4, 2, counts), 2 * 100 * (6.0 / 15 + 8.0 / 81), 1e-9);
  const std::vector<double> chosen = {0, 100, 50, 0, 0, 0, 100, 20};
  for (const ExpertSwap& s : BetterPlaces(p, chosen, 4, 8)) EXPECT_FALSE(p.OnDisk(s.layer, s.in));
  EXPECT_EQ(BetterPlaces(p, chosen, 4, 8).size(), 2u) << "experts of the disk do not change places";
  p.LeaveOnDisk(bytes, 1'000'000, counts);
  EXPECT_EQ(p.CountByLayer(), (Counts{0, 0}));
  EXPECT_EQ(p.DiskByLayer(), (Counts{3, 2}));
}

TEST(ExpertPlacement, TheLeastChosenForTheirSizeGoFirst) {
  const Counts bytes = {100, 200};
  const std::vector<uint64_t> counts = {9, 0,  5, 1,   // per byte .09 .00 .05 .01
                                        4, 30, 3, 8};  // .02 .15 .015 .04
  const auto on_host = [&](int64_t overflow) {
    const ExpertPlacement p = ExpertPlacement::Coldest(0, bytes, 4, overflow, counts);
    std::string s;
    for (int64_t i = 0; i < 8; ++i) s += p.OnHost(i / 4, i % 4) ? '1' : '0';
    return s;
  };
  EXPECT_EQ(on_host(1), "01000000");
  EXPECT_EQ(on_host(101), "01010000");
  EXPECT_EQ(on_host(201), "01010010");
  EXPECT_EQ(on_host(401), "01011010");
  EXPECT_EQ(on_host(601), "01011011");
  EXPECT_EQ(on_host(801), "01111011");
  const ExpertPlacement p = ExpertPlacement::Coldest(0, bytes, 4, 201, counts);
  EXPECT_NEAR(HostBytesOfToken(p, bytes, 4, 2, counts), 2 * (100 * 1.0 / 15 + 200 * 3.0 / 45), 1e-9);
  // A layer without counts is ordered by the experts' numbers.
  const std::vector<uint64_t> none(8);
  EXPECT_NEAR(HostBytesOfToken(p, bytes, 4, 2, none), 2 * (100 * 2.0 / 4 + 200 * 1.0 / 4), 1e-9);
}

TEST(ExpertPlacement, TheEmbeddingTableGoesBeforeAnyExpert) {
  const Counts bytes(2, 100);
  for (const auto& [overflow, experts] : {std::pair(1, 0), std::pair(300, 0), std::pair(301, 1), std::pair(450, 2)}) {
    const ExpertPlacement p = ExpertPlacement::Coldest(300, bytes, 4, overflow, {});
    EXPECT_TRUE(p.EmbeddingOnHost());
    const Counts by_layer = p.CountByLayer();
    EXPECT_EQ(std::accumulate(by_layer.begin(), by_layer.end(), int64_t{0}), experts) << overflow;
    EXPECT_EQ(by_layer.empty(), experts == 0);
  }
  EXPECT_FALSE(ExpertPlacement::Coldest(300, bytes, 4, 0, {}).EmbeddingOnHost());
}

TEST(ExpertPlacement, OfEveryLayerSoManyStayAtMost) {
  const Counts bytes(3, 100);
  const auto by_layer = [&](int64_t overflow, int64_t slots, const std::vector<uint64_t>& counts) {
    return ExpertPlacement::Coldest(0, bytes, 4, overflow, counts, slots).CountByLayer();
  };
  EXPECT_EQ(by_layer(0, 4, {}), Counts());
  EXPECT_EQ(by_layer(0, 3, {}), Counts(3, 1));
  EXPECT_EQ(by_layer(0, 1, {}), Counts(3, 3));
  EXPECT_EQ(by_layer(300, 3, {}), Counts(3, 1)) << "as much as overflows";
  EXPECT_EQ(by_layer(401, 3, {}), Counts({2, 2, 1})) << "more than that";
  const std::vector<uint64_t> counts = {9, 8, 7, 6, 9, 1, 2, 3, 5, 5, 5, 5};
  EXPECT_EQ(by_layer(500, 3, counts), Counts({1, 3, 1}));
  const ExpertPlacement p = ExpertPlacement::Coldest(0, bytes, 4, 0, counts, 1);
  for (int64_t l = 0; l < 3; ++l) {
    for (int64_t e = 0; e < 4; ++e) EXPECT_EQ(p.OnHost(l, e), e != 0) << l << ", " << e;
  }
}

TEST(ExpertPlacement, WhatIsClearlyChosenMoreOftenComesIn) {
  const Counts bytes(2, 100);
  ExpertPlacement p = ExpertPlacement::Coldest(0, bytes, 4, 400, {});  // 2 and 3 of both layers
  const std::vector<double> chosen = {100, 500, 300, 900,              // 3 for 0, then 2 for 1: no gain
                                      40,  50,  63,  60};              // less than 1.5 times as often plus 4
  const std::vector<ExpertSwap> swaps = BetterPlaces(p, chosen, 4, 10);
  ASSERT_EQ(swaps.size(), 1u);
  EXPECT_EQ(swaps[0].layer, 0);
  EXPECT_EQ(swaps[0].in, 3);
  EXPECT_EQ(swaps[0].out, 0);
  EXPECT_TRUE(BetterPlaces(p, chosen, 4, 0).empty());
  p.Move(0, 3, /*to_host=*/false);
  p.Move(0, 0, /*to_host=*/true);
  EXPECT_TRUE(p.OnHost(0, 0));
  EXPECT_FALSE(p.OnHost(0, 3));
  EXPECT_EQ(p.CountByLayer(), Counts(2, 2));
  EXPECT_TRUE(BetterPlaces(p, chosen, 4, 10).empty());
  EXPECT_TRUE(BetterPlaces({}, chosen, 4, 10).empty()) << "all are on the device";
  // The largest gains first, whatever their layer.
  const std::vector<double> others = {0, 0, 100, 50, 0, 0, 500, 200};
  const std::vector<ExpertSwap> best = BetterPlaces(ExpertPlacement::Coldest(0, bytes, 4, 400, {}), others, 4, 2);
  ASSERT_EQ(best.size(), 2u);
  EXPECT_EQ(best[0].layer, 1);
  EXPECT_EQ(best[0].in, 2);
  EXPECT_EQ(best[1].in, 3);
}

// Published counts of the released model: 40, 46 and 52 % of the choices in the first 4.5, 6.4 and 8.2 % of the
// experts, 71 % in the first quarter. The synthetic shares agree within three hundredths.
TEST(SyntheticRouting, SharesFallAsTheReleasedModelsDo) {
  const Config c = SyntheticConfig({.shape = "flash"}).value();
  std::vector<double> shares = SkewedShares(c, 1);
  EXPECT_NE(shares, SkewedShares(c, 2)) << "every layer has an order of its own";
  std::sort(shares.rbegin(), shares.rend());
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  EXPECT_NEAR(all, 6, 1e-6);
  const auto first = [&](double part) {
    const double n = part * 256;
    const auto whole = static_cast<size_t>(n);
    const double sum = std::accumulate(shares.begin(), shares.begin() + static_cast<std::ptrdiff_t>(whole), 0.0);
    return (sum + (n - static_cast<double>(whole)) * shares[whole]) / all;
  };
  EXPECT_NEAR(first(500.0 / 11008), 0.40, 0.03);
  EXPECT_NEAR(first(700.0 / 11008), 0.46, 0.03);
  EXPECT_NEAR(first(900.0 / 11008), 0.52, 0.03);
  EXPECT_NEAR(first(0.25), 0.71, 0.03);
}

TEST(SyntheticRouting, SkewedHashTablesNameDistinctExperts) {
  const Config c = SyntheticConfig({.shape = "nano"}).value();
  const SyntheticModel model{.shape = "nano", .skewed_routing = true};
  const std::vector<int32_t> table = SyntheticHashTable(c, model, 3);
  ASSERT_EQ(static_cast<int64_t>(table.size()), c.vocab_size * c.experts_per_token);
  Counts counts(static_cast<size_t>(c.num_experts));
  for (size_t i = 0; i < table.size(); i += 3) {
    EXPECT_NE(table[i], table[i + 1]);
    EXPECT_NE(table[i], table[i + 2]);
    EXPECT_NE(table[i + 1], table[i + 2]);
    for (size_t j = i; j < i + 3; ++j) ++counts.at(static_cast<size_t>(table[j]));
  }
  EXPECT_GT(*std::max_element(counts.begin(), counts.end()), 5 * *std::min_element(counts.begin(), counts.end()));
}

}  // namespace
}  // namespace dsv4::deepseek_v4
