#include "ops/stream_mean/stream_mean.h"

#include <vector>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

void StreamMeanOnGpu(const ExecContext&, const StreamMeanArgs& a) {
  Mirror gpu;
  StreamMean(gpu.ctx(), {.streams = gpu.In(a.streams), .out = gpu.Out(a.out), .first = a.first});
  gpu.Finish();
}

DSV4_DEVICE_TEST(StreamMean, WritesTheMeanToItsColumnsOnly) {
  Random random(1);
  for (const int64_t h : {1, 4, 5}) {
    for (const int64_t d : {1, 129, 2048}) {
      for (const int64_t first : {int64_t{0}, d, 3 * d + 1}) {
        const int64_t t = 7, width = first + d + 2;
        GuardBuffer<float> streams(Shape{t, h, d}, random.Hostiles(t * h * d));
        const std::vector<float> before = random.Normals(t * width);
        std::vector<float> want = before;
        for (int64_t r = 0; r < t; ++r) {
          for (int64_t i = 0; i < d; ++i) {
            float sum = streams[r * h * d + i];
            for (int64_t k = 1; k < h; ++k) sum += streams[(r * h + k) * d + i];
            want[static_cast<size_t>(r * width + first + i)] = sum / static_cast<float>(h);
          }
        }
        for (const auto& c : Places(on, StreamMean, StreamMeanOnGpu)) {
          GuardBuffer<float> out(Shape{t, width}, before);
          c.run({.streams = streams.tensor(), .out = out.tensor(), .first = first});
          EXPECT_TRUE(BitEqual(out.span(), want)) << c.name << " H " << h << " D " << d << " from " << first;
        }
      }
    }
  }
}

TEST(StreamMeanDeathTest, RefusesColumnsThatAreNotThere) {
  GuardBuffer<float> streams(Shape{2, 1, 3}, std::vector<float>(6, 1.0f));
  GuardBuffer<float> out(Shape{2, 4}, std::vector<float>(8, 0.0f));
  EXPECT_DEATH(StreamMean({}, {.streams = streams.tensor(), .out = out.tensor(), .first = 2}), "column");
}

}  // namespace
}  // namespace dsv4::test
