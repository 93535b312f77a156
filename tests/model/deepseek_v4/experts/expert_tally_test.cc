// Counts of hits and of reads from the host depend on where an expert was at the time.
#include "model/deepseek_v4/experts/expert_tally.h"

#include <vector>

#include <gtest/gtest.h>

namespace dsv4::deepseek_v4 {
namespace {

TEST(ExpertTally, WhatWasAHitStaysOne) {
  const std::vector<int64_t> bytes = {100, 1000};
  // Expert 2 of both layers is on the host.
  ExpertTally tally(ExpertPlacement::Coldest(0, bytes, 3, 1100, {}), bytes, 3);
  const std::vector<uint64_t> first = {5, 1, 2, 3, 3, 2, /*passes*/ 2, 1, 1, 2, 2, 2};
  ExpertUse use = tally.Use(first);
  EXPECT_EQ(use.experts, 6);
  EXPECT_EQ(use.on_host, 2);
  EXPECT_EQ(use.host_bytes, 1100);
  EXPECT_EQ(use.chosen, 16u);
  EXPECT_EQ(use.chosen_resident, 12u);
  EXPECT_EQ(use.fetched_bytes, 1 * 100 + 2 * 1000);
  tally.Close(first);
  tally.Move(1, 2, /*to_host=*/false);
  tally.Move(1, 0, /*to_host=*/true);
  use = tally.Use(first);
  EXPECT_EQ(use.chosen_resident, 12u);
  EXPECT_EQ(use.fetched_bytes, 2100);
  EXPECT_EQ(use.on_host, 2);
  const std::vector<uint64_t> second = {5, 1, 3, 4, 3, 9, /*passes*/ 2, 1, 2, 5, 2, 8};
  use = tally.Use(second);
  EXPECT_EQ(use.chosen, 25u);
  EXPECT_EQ(use.chosen_resident, 12u + 7u);
  EXPECT_EQ(use.fetched_bytes, 2100 + 1 * 100 + 3 * 1000);
}

}  // namespace
}  // namespace dsv4::deepseek_v4
