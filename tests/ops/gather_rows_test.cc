#include "ops/gather_rows/gather_rows.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

void GatherRowsOnGpu(const ExecContext&, const GatherRowsArgs& a) {
  Mirror gpu;
  GatherRows(gpu.ctx(), {.x = gpu.In(a.x), .rows = gpu.In(a.rows), .out = gpu.Out(a.out)});
  gpu.Finish();
}

DSV4_DEVICE_TEST(GatherRows, CopiesRowsInAnyOrderBitForBit) {
  Random random(1);
  GuardBuffer<float> x(Shape{5, 4, 3}, random.Hostiles(60));
  x[7] = std::nanf("");
  GuardBuffer<int32_t> rows(Shape{6}, {4, 0, 0, 2, 4, 1});
  for (const auto& c : Places(on, GatherRows, GatherRowsOnGpu)) {
    GuardBuffer<float> out(Shape{6, 4, 3});
    c.run({.x = x.tensor(), .rows = rows.tensor(), .out = out.tensor()});
    for (int64_t r = 0; r < 6; ++r) EXPECT_TRUE(BitEqual(out.row(r), x.row(rows[r]))) << c.name;
  }
}

DSV4_DEVICE_TEST(GatherRows, AnyWidthAndNumber) {
  Random random(3);
  for (const int64_t width : {1, 33, 4096, 16384}) {
    for (const int64_t r : {1, 2, 67}) {
      const int64_t t = 19;
      GuardBuffer<float> x({t, 1, width}, random.Normals(t * width));
      GuardBuffer<int32_t> rows(r);
      for (int64_t i = 0; i < r; ++i) rows[i] = static_cast<int32_t>(i == 0 ? t - 1 : random.Index(t));
      for (const auto& c : Places(on, GatherRows, GatherRowsOnGpu)) {
        GuardBuffer<float> out({r, 1, width});
        c.run({.x = x.tensor(), .rows = rows.tensor(), .out = out.tensor()});
        for (int64_t i = 0; i < r; ++i) EXPECT_TRUE(BitEqual(out.row(i), x.row(rows[i]))) << c.name << " " << width;
      }
    }
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
}  // namespace dsv4::test
