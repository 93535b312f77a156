#include "ops/advance/advance.h"

#include <gtest/gtest.h>

#include "support/guard_buffer.h"

namespace dsv4::test {
namespace {

TEST(Advance, TakesTheSampledTokens) {
  GuardBuffer<int32_t> sampled({2}, {7, -1}), tokens({2}), history({2, 3}, {1, 2, -9, 4, 5, 6}),
      counts({2}, {2, 3});
  GuardBuffer<int64_t> positions({2}, {41, 1000000});
  std::vector<SequenceView> sequences = {{.start = 41, .begin = 0, .end = 1},
                                         {.start = 1000000, .begin = 1, .end = 2}};
  Advance({}, {.sampled = sampled.tensor(),
               .tokens = tokens.tensor(),
               .positions = positions.tensor(),
               .sequences = sequences.data(),
               .history = history.tensor(),
               .counts = counts.tensor()});
  EXPECT_EQ(tokens.values(), (std::vector<int32_t>{7, -1}));
  EXPECT_EQ(positions.values(), (std::vector<int64_t>{42, 1000001}));
  EXPECT_EQ(sequences[0].start, 42);
  EXPECT_EQ(sequences[1].start, 1000001);
  EXPECT_EQ(history.values(), (std::vector<int32_t>{1, 2, 7, 4, 5, 6}));  // no room in the second
  EXPECT_EQ(counts.values(), (std::vector<int32_t>{3, 4}));
}

}  // namespace
}  // namespace dsv4::test
