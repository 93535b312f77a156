#include "ops/step_before/step_before.h"

#include <vector>

#include <gtest/gtest.h>

#include "support/devices.h"
#include "support/guard_buffer.h"

namespace dsv4::test {
namespace {

void StepBeforeOnGpu(const ExecContext&, const StepBeforeArgs& a) {
  Mirror gpu;
  const std::vector<SequenceView> views(a.sequences, a.sequences + a.num_sequences);
  const int64_t bytes = a.num_sequences * static_cast<int64_t>(sizeof(SequenceView));
  const Tensor before = gpu.Out({a.before, DType::kU8, {bytes}});
  StepBefore(gpu.ctx(), {.positions = gpu.In(a.positions),
                         .sequences = gpu.Array(views),
                         .num_sequences = a.num_sequences,
                         .positions_before = gpu.Out(a.positions_before),
                         .before = static_cast<SequenceView*>(before.data)});
  gpu.Finish();
}

DSV4_DEVICE_TEST(StepBefore, EveryRowIsOnePositionEarlier) {
  uint8_t fixed = 0;
  uint8_t* page = &fixed;
  const std::vector<SequenceView> sequences = {{.start = 0, .begin = 0, .end = 3, .fixed = &fixed, .pages = &page},
                                               {.start = 1, .begin = 3, .end = 4, .fixed = &fixed, .pages = &page},
                                               {.start = 900, .begin = 4, .end = 6, .fixed = &fixed, .pages = &page},
                                               {.start = 0, .begin = 6, .end = 7, .fixed = &fixed, .pages = &page}};
  for (const auto& c : Places(on, StepBefore, StepBeforeOnGpu)) {
    GuardBuffer<int64_t> positions({7}, {0, 1, 2, 1, 900, 901, 0}), before({7});
    std::vector<SequenceView> views(4);
    c.run({.positions = positions.tensor(),
           .sequences = sequences.data(),
           .num_sequences = 4,
           .positions_before = before.tensor(),
           .before = views.data()});
    EXPECT_EQ(before.values(), (std::vector<int64_t>{0, 0, 1, 0, 899, 900, 0})) << c.name;
    const auto expect = [&](size_t s, int64_t start, int64_t begin, int64_t end) {
      EXPECT_TRUE(views[s].start == start && views[s].begin == begin && views[s].end == end) << c.name << " " << s;
      EXPECT_TRUE(views[s].fixed == &fixed && views[s].pages == &page) << c.name << " " << s;
    };
    expect(0, 0, 1, 3);
    expect(1, 0, 3, 4);
    expect(2, 899, 4, 6);
    expect(3, 0, 7, 7);
  }
}

DSV4_DEVICE_TEST(StepBefore, MoreRowsThanABlockAndMoreSequences) {
  for (const auto& c : Places(on, StepBefore, StepBeforeOnGpu)) {
    const int64_t n = 300;
    GuardBuffer<int64_t> positions({n}), before({n});
    std::vector<SequenceView> sequences(static_cast<size_t>(n)), views(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      positions[i] = i;
      sequences[static_cast<size_t>(i)] = {.start = i, .begin = i, .end = i + 1};
    }
    c.run({.positions = positions.tensor(),
           .sequences = sequences.data(),
           .num_sequences = n,
           .positions_before = before.tensor(),
           .before = views.data()});
    for (int64_t i = 1; i < n; ++i) {
      EXPECT_EQ(before[i], i - 1) << c.name;
      EXPECT_EQ(views[static_cast<size_t>(i)].start, i - 1) << c.name;
    }
  }
}

}  // namespace
}  // namespace dsv4::test
