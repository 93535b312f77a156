#include "ops/gather_rows/gather_rows.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/contexts.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4 {
namespace {

using test::BitEqual;
using test::GuardBuffer;

TEST(GatherRows, CopiesRowsInAnyOrderBitForBit) {
  test::Random random(1);
  GuardBuffer<float> x(Shape{5, 4, 3}, random.Hostiles(60));
  x[7] = std::nanf("");
  GuardBuffer<int32_t> rows(Shape{6}, {4, 0, 0, 2, 4, 1});
  for (const test::NamedContext& c : test::AllContexts()) {
    GuardBuffer<float> out(Shape{6, 4, 3});
    GatherRows(c.ctx, {.x = x.tensor(), .rows = rows.tensor(), .out = out.tensor()});
    for (int64_t r = 0; r < 6; ++r) EXPECT_TRUE(BitEqual(out.row(r), x.row(rows[r]))) << c.name;
  }
}

TEST(GatherRows, NoRowsWriteNothing) {
  GuardBuffer<float> x(Shape{2, 3}, std::vector<float>(6, 1.0f));
  GuardBuffer<int32_t> rows(Shape{0});
  GuardBuffer<float> out(Shape{0, 3});
  GatherRows({}, {.x = x.tensor(), .rows = rows.tensor(), .out = out.tensor()});
}

TEST(GatherRowsDeathTest, RefusesRowsThatAreNotThere) {
  GuardBuffer<float> x(Shape{2, 3}, std::vector<float>(6, 1.0f));
  GuardBuffer<float> out(Shape{1, 3});
  for (const int32_t bad : {2, -1}) {
    GuardBuffer<int32_t> rows(Shape{1}, {bad});
    EXPECT_DEATH(GatherRows({}, {.x = x.tensor(), .rows = rows.tensor(), .out = out.tensor()}), "row");
  }
}

}  // namespace
}  // namespace dsv4
