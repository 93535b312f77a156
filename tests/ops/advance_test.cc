#include "ops/advance/advance.h"

#include <gtest/gtest.h>

#include "ops/idle_row.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

void AdvanceOnGpu(const ExecContext&, const AdvanceArgs& a) {
  Mirror gpu;
  const int64_t bytes = a.sampled.dim(0) * static_cast<int64_t>(sizeof(SequenceView));
  const Tensor views = gpu.Out({a.sequences, DType::kU8, {bytes}});
  Advance(gpu.ctx(), {.sampled = gpu.In(a.sampled),
                      .tokens = gpu.Out(a.tokens),
                      .positions = gpu.Out(a.positions),
                      .sequences = static_cast<SequenceView*>(views.data),
                      .history = gpu.Out(a.history),
                      .counts = gpu.Out(a.counts)});
  gpu.Finish();
}

DSV4_DEVICE_TEST(Advance, TakesTheSampledTokens) {
  for (const auto& at : Places(on, Advance, AdvanceOnGpu)) {
    GuardBuffer<int32_t> sampled({2}, {7, -1}), tokens({2}, {1, 2});
    GuardBuffer<int32_t> history({2, 3}, {1, 2, -9, 4, 5, 6}), counts({2}, {2, 3});
    GuardBuffer<int64_t> positions({2}, {41, 1000000});
    std::vector<SequenceView> sequences = {{.start = 41, .begin = 0, .end = 1},
                                           {.start = 1000000, .begin = 1, .end = 2}};
    at.run({.sampled = sampled.tensor(),
            .tokens = tokens.tensor(),
            .positions = positions.tensor(),
            .sequences = sequences.data(),
            .history = history.tensor(),
            .counts = counts.tensor()});
    EXPECT_EQ(tokens.values(), (std::vector<int32_t>{7, -1})) << at.name;
    EXPECT_EQ(positions.values(), (std::vector<int64_t>{42, 1000001})) << at.name;
    EXPECT_EQ(sequences[0].start, 42) << at.name;
    EXPECT_EQ(sequences[1].start, 1000001) << at.name;
    EXPECT_EQ(history.values(), (std::vector<int32_t>{1, 2, 7, 4, 5, 6})) << at.name;  // no room in the second
    EXPECT_EQ(counts.values(), (std::vector<int32_t>{3, 4})) << at.name;
  }
}

DSV4_DEVICE_TEST(Advance, LeavesIdleRows) {
  for (const auto& at : Places(on, Advance, AdvanceOnGpu)) {
    GuardBuffer<int32_t> sampled({2}, {7, 8}), tokens({2}, {5, kIdleToken});
    GuardBuffer<int64_t> positions({2}, {41, 0});
    std::vector<SequenceView> sequences = {{.start = 41, .begin = 0, .end = 1}, {.start = 0, .begin = 1, .end = 2}};
    at.run({.sampled = sampled.tensor(),
            .tokens = tokens.tensor(),
            .positions = positions.tensor(),
            .sequences = sequences.data()});
    EXPECT_EQ(tokens.values(), (std::vector<int32_t>{7, kIdleToken})) << at.name;
    EXPECT_EQ(positions.values(), (std::vector<int64_t>{42, 0})) << at.name;
    EXPECT_EQ(sequences[0].start, 42) << at.name;
    EXPECT_EQ(sequences[1].start, 0) << at.name;
  }
}

struct AdvanceCase {
  explicit AdvanceCase(int64_t s, int64_t capacity)
      : sampled({s}), counts({s}), tokens({s}), past({s, capacity}), positions({s}), views(static_cast<size_t>(s)) {
    Random random(5);
    for (int64_t i = 0; i < s; ++i) {
      sampled[i] = static_cast<int32_t>(random.Index(1000)) - 3;
      tokens[i] = i % 5 == 3 ? kIdleToken : 0;
      counts[i] = static_cast<int32_t>(random.Index(capacity + 2));
      positions[i] = random.Index(1 << 20);
      views[static_cast<size_t>(i)] = {.start = positions[i], .begin = i, .end = i + 1};
    }
  }
  AdvanceArgs Args(bool history) {
    return {.sampled = sampled.tensor(),
            .tokens = tokens.tensor(),
            .positions = positions.tensor(),
            .sequences = views.data(),
            .history = history ? past.tensor() : Tensor{},
            .counts = history ? counts.tensor() : Tensor{}};
  }
  GuardBuffer<int32_t> sampled, counts, tokens, past;
  GuardBuffer<int64_t> positions;
  std::vector<SequenceView> views;
};

DSV4_DEVICE_TEST(Advance, EqualsReference) {
  for (const int64_t s : {1, 3, 130}) {
    for (const bool history : {false, true}) {
      AdvanceCase want(s, 5);
      Advance({.reference_ops = true}, want.Args(history));
      for (const auto& at : Places(on, Advance, AdvanceOnGpu)) {
        AdvanceCase got(s, 5);
        at.run(got.Args(history));
        EXPECT_EQ(got.tokens.values(), want.tokens.values()) << at.name;
        EXPECT_EQ(got.positions.values(), want.positions.values()) << at.name;
        for (size_t i = 0; i < got.views.size(); ++i) EXPECT_EQ(got.views[i].start, want.views[i].start) << at.name;
        EXPECT_EQ(got.past.values(), want.past.values()) << at.name;
        EXPECT_EQ(got.counts.values(), want.counts.values()) << at.name;
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
