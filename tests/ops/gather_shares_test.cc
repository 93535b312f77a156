#include "ops/gather_shares/gather_shares.h"

#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/guard_buffer.h"
#include "support/random.h"
#include "support/ranks.h"

namespace dsv4::test {
namespace {

TEST(GatherShares, GivesEveryRankAllRows) {
  Random random(1);
  for (const int count : {2, 4, 8}) {
    // Rows that give some ranks nothing, and shares of several sizes.
    for (const Shape shape : {Shape{1, 1}, Shape{7, 3}, Shape{8, 5}, Shape{9, 64}, Shape{61, 17}, Shape{129, 33}}) {
      std::vector<std::unique_ptr<GuardBuffer<float>>> y;
      std::vector<float> want;
      for (int p = 0; p < count; ++p) {
        std::vector<float> part = random.Hostiles(shape.num_elements());
        part[0] = std::nanf("");
        const RankShare share = ShareOf(shape[0], p, count, kShareRows);
        want.insert(want.end(), part.begin() + share.begin * shape[1], part.begin() + share.end * shape[1]);
        y.push_back(std::make_unique<GuardBuffer<float>>(shape, part));
      }
      Exchange exchange(count, {.timeout_s = 60});
      RunRanks(exchange, [&](const ExecContext& mine, int r) {
        const Tensor rows = y[static_cast<size_t>(r)]->tensor();
        EXPECT_EQ(ShareExchanges(mine, rows), 1);
        GatherShares(mine, {.y = rows, .site = 2});
      });
      EXPECT_TRUE(exchange.status().ok());
      for (auto& got : y) EXPECT_TRUE(BitEqual(got->span(), want)) << count << " ranks, " << shape.ToString();
    }
  }
}

TEST(GatherShares, OneRankHasThemAll) {
  GuardBuffer<float> y({2, 3}, {1, 2, 3, 4, 5, 6});
  GatherShares({}, {.y = y.tensor()});
  const RankShare rows = RowsOfRank({}, 2);
  EXPECT_EQ(rows.begin, 0);
  EXPECT_EQ(rows.end, 2);
}

TEST(GatherShares, AFailedExchangeLetsEverybodyPass) {
  Exchange exchange(2, {.timeout_s = 0});
  exchange.Fail(Internal("a test"));
  GuardBuffer<float> y({16, 8}, std::vector<float>(128, 1.0f));
  GatherShares({.ranks = &exchange.view(1)}, {.y = y.tensor()});
  EXPECT_EQ(exchange.status().message(), "a test");
}

// What an array of a GPU's exchange carries at once is counted alike by all.
TEST(GatherShares, CountsExchangesByTheLongestShare) {
  RankView view{.count = 2, .memory = {.bulk_floats = 4096}};
  const ExecContext ctx{.ranks = &view};
  const auto count = [&](int64_t rows, int64_t width) {
    return ShareExchanges(ctx, {&view, DType::kF32, {rows, width}});
  };
  EXPECT_EQ(count(0, 64), 0);
  EXPECT_EQ(count(1, 64), 1);
  EXPECT_EQ(count(128, 64), 1);
  EXPECT_EQ(count(129, 64), 2);  // 64 and 65 rows
  EXPECT_EQ(count(8192, 4096), 4096);
}

}  // namespace
}  // namespace dsv4::test
