#include "ops/embed/embed.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "ops/idle_row.h"
#include "support/compare.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

namespace dsv4::test {
namespace {

void EmbedOnGpu(const ExecContext&, const EmbedArgs& a) {
  Mirror gpu;
  Embed(gpu.ctx(),
        {.tokens = gpu.In(a.tokens), .table = gpu.Weight(a.table, /*rows=*/true), .streams = gpu.Out(a.streams)});
  gpu.Finish();
}

DSV4_DEVICE_TEST(Embed, CopiesTheRowIntoEveryStreamExactly) {
  Random random(1);
  for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kF32}) {
    for (const int64_t d : {1, 37, 256, 4096}) {
      const int64_t v = 11, h = d == 37 ? 3 : 4;
      const QuantFixture table(random, {format}, v, d);  // unaligned, as in a mapped file
      const std::vector<double> rows = table.Decoded();
      for (const int64_t t : {0, 1, 5, 100, 300}) {
        if (t * d > 100'000) continue;  // large enough in one dimension
        GuardBuffer<int32_t> tokens(t);
        for (int64_t i = 0; i < t; ++i) tokens[i] = static_cast<int32_t>(i == 0 ? v - 1 : i == 1 ? 0 : random.Index(v));
        for (const auto& c : Places(on, Embed, EmbedOnGpu)) {
          GuardBuffer<float> streams(Shape{t, h, d});
          c.run({.tokens = tokens.tensor(), .table = table.tensor(), .streams = streams.tensor()});
          for (int64_t i = 0; i < t * h * d; ++i) {
            const int64_t token = tokens[i / (h * d)];
            ASSERT_EQ(static_cast<double>(streams[i]), rows[static_cast<size_t>(token * d + i % d)]) << c.name;
          }
        }
      }
    }
  }
}

DSV4_DEVICE_TEST(Embed, IdleRowsAreZeros) {
  Random random(2);
  const QuantFixture table(random, {WeightFormat::kBf16}, 5, 8);
  for (const auto& c : Places(on, Embed, EmbedOnGpu)) {
    GuardBuffer<int32_t> tokens({2}, {3, kIdleToken});
    GuardBuffer<float> got({2, 2, 8}, std::vector<float>(32, 1.0f));
    c.run({.tokens = tokens.tensor(), .table = table.tensor(), .streams = got.tensor()});
    EXPECT_EQ(static_cast<double>(got[15]), table.Decoded()[31]) << c.name;
    for (int64_t i = 16; i < 32; ++i) EXPECT_EQ(got[i], 0.0f) << c.name;
  }
}

// The sampler's -1 for damaged logits must not read outside the table, and must be visible. The CPU refuses it (below).
TEST(CudaEmbed, TokensOutsideTheTableGiveNaN) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  const QuantFixture table(random, {WeightFormat::kBf16}, 5, 8);
  GuardBuffer<int32_t> tokens({3}, {-1, 5, 2147483647});
  GuardBuffer<float> got({3, 2, 8}, std::vector<float>(48, 1.0f));
  EmbedOnGpu({}, {.tokens = tokens.tensor(), .table = table.tensor(), .streams = got.tensor()});
  for (const float x : got.span()) EXPECT_TRUE(std::isnan(x));
}

TEST(EmbedDeathTest, RefusesTokensOutsideTheTable) {
  Random random(2);
  const QuantFixture table(random, {WeightFormat::kBf16}, 8, 16);
  GuardBuffer<float> streams(Shape{1, 4, 16});
  for (const int32_t bad : {8, -1}) {
    GuardBuffer<int32_t> tokens(Shape{1}, {bad});
    EXPECT_DEATH(Embed({}, {.tokens = tokens.tensor(), .table = table.tensor(), .streams = streams.tensor()}),
                 "token -?[18]");
  }
}

}  // namespace
}  // namespace dsv4::test
