#include "ops/embed/embed.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/contexts.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

namespace dsv4 {
namespace {

using test::GuardBuffer;

TEST(Embed, CopiesTheRowIntoEveryStreamExactly) {
  test::Random random(1);
  for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kF32}) {
    const int64_t v = 11, d = 37, h = 4;
    const test::QuantFixture table(random, {format}, v, d);  // unaligned, as in a mapped file
    const std::vector<double> rows = table.Decoded();
    for (const int64_t t : {0, 1, 5, 100}) {
      GuardBuffer<int32_t> tokens(t);
      for (int64_t i = 0; i < t; ++i)
        tokens[i] = static_cast<int32_t>(i == 0 ? v - 1 : i == 1 ? 0 : random.Index(v));
      for (const test::NamedContext& c : test::AllContexts()) {
        GuardBuffer<float> streams(Shape{t, h, d});
        Embed(c.ctx, {.tokens = tokens.tensor(), .table = table.tensor(), .streams = streams.tensor()});
        for (int64_t i = 0; i < t * h * d; ++i) {
          const int64_t token = tokens[i / (h * d)];
          ASSERT_EQ(static_cast<double>(streams[i]), rows[static_cast<size_t>(token * d + i % d)]) << c.name;
        }
      }
    }
  }
}

TEST(EmbedDeathTest, RefusesTokensOutsideTheTable) {
  test::Random random(2);
  const test::QuantFixture table(random, {WeightFormat::kBf16}, 8, 16);
  GuardBuffer<float> streams(Shape{1, 4, 16});
  for (const int32_t bad : {8, -1}) {
    GuardBuffer<int32_t> tokens(Shape{1}, {bad});
    EXPECT_DEATH(Embed({}, {.tokens = tokens.tensor(), .table = table.tensor(), .streams = streams.tensor()}),
                 "token -?[18]");
  }
}

}  // namespace
}  // namespace dsv4
