#include "ops/stream_add/stream_add.h"

#include <vector>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

void StreamAddOnGpu(const ExecContext&, const StreamAddArgs& a) {
  Mirror gpu;
  StreamAdd(gpu.ctx(), {.y = gpu.In(a.y), .streams = gpu.Out(a.streams)});
  gpu.Finish();
}

DSV4_DEVICE_TEST(StreamAdd, AddsTheRowToEveryStream) {
  Random random(1);
  for (const int64_t h : {1, 4, 7}) {
    for (const int64_t d : {1, 129, 4096}) {
      for (const int64_t t : {0, 1, 19}) {
        GuardBuffer<float> y(Shape{t, d}, random.Hostiles(t * d));
        const std::vector<float> before = random.Normals(t * h * d);
        std::vector<float> want = before;
        for (int64_t i = 0; i < t * h * d; ++i) want[static_cast<size_t>(i)] += y[i / (h * d) * d + i % d];
        for (const auto& c : Places(on, StreamAdd, StreamAddOnGpu)) {
          GuardBuffer<float> streams(Shape{t, h, d}, before);
          c.run({.y = y.tensor(), .streams = streams.tensor()});
          EXPECT_TRUE(BitEqual(streams.span(), want)) << c.name << " H " << h << " D " << d;
        }
      }
    }
  }
}

TEST(StreamAddDeathTest, RefusesOtherShapes) {
  GuardBuffer<float> y(Shape{2, 3}, std::vector<float>(6, 1.0f)), streams(Shape{2, 2, 2}, std::vector<float>(8, 1.0f));
  EXPECT_DEATH(StreamAdd({}, {.y = y.tensor(), .streams = streams.tensor()}), "dim");
}

}  // namespace
}  // namespace dsv4::test
