#include "ops/gather_ranks/gather_ranks.h"

#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/contexts.h"
#include "support/guard_buffer.h"
#include "support/random.h"
#include "support/ranks.h"

namespace dsv4::test {
namespace {

TEST(GatherRanks, PutsColumnsSideBySideOnEveryRank) {
  Random random(1);
  for (const int count : {1, 2, 4, 8}) {
    for (const Shape shape : {Shape{1, 1}, Shape{3, 17}, Shape{64, 130}}) {
      const int64_t rows = shape[0], width = shape[1];
      std::vector<std::vector<float>> parts;
      std::vector<float> want(static_cast<size_t>(rows * width * count));
      for (int p = 0; p < count; ++p) {
        parts.push_back(random.Hostiles(rows * width));
        parts.back()[0] = std::nanf("");
        for (int64_t i = 0; i < rows * width; ++i) {
          want[static_cast<size_t>(i / width * width * count + p * width +
                                   i % width)] = parts.back()[static_cast<size_t>(i)];
        }
      }
      for (const NamedContext& c : AllContexts()) {
        Exchange exchange(count, {.timeout_s = 60});
        std::vector<std::unique_ptr<GuardBuffer<float>>> x, y;
        for (const auto& part : parts) {
          x.push_back(std::make_unique<GuardBuffer<float>>(shape, part));
          y.push_back(std::make_unique<GuardBuffer<float>>(Shape{rows, width * count}));
        }
        RunRanks(exchange,
                 [&](const ExecContext& mine, int r) {
                   const auto at = static_cast<size_t>(r);
                   GatherRanks(mine, {.x = x[at]->tensor(), .y = y[at]->tensor(), .site = 1});
                 },
                 {.reference_ops = c.ctx.reference_ops});
        for (auto& got : y)
          EXPECT_TRUE(BitEqual(got->span(), want)) << count << " ranks, " << shape.ToString() << ", " << c.name;
      }
    }
  }
}

TEST(GatherRanks, OneRankCopiesOrLeavesInPlace) {
  GuardBuffer<float> x({2, 3}, {1, 2, 3, 4, 5, 6}), y({2, 3});
  GatherRanks({}, {.x = x.tensor(), .y = y.tensor()});
  EXPECT_TRUE(BitEqual(y.span(), x.span()));
  GatherRanks({}, {.x = x.tensor(), .y = x.tensor()});
  EXPECT_TRUE(BitEqual(y.span(), x.span()));
}

TEST(GatherRanksDeathTest, ShapesThatDoNotFit) {
  Exchange exchange(2, {});
  GuardBuffer<float> x({2, 3}, std::vector<float>(6, 1.0f)), y({2, 3});
  EXPECT_DEATH(GatherRanks({.ranks = &exchange.view(0)}, {.x = x.tensor(), .y = y.tensor()}), "vs");
}

}  // namespace
}  // namespace dsv4::test
