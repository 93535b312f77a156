#include "ops/block_rows/block_rows.h"

#include <vector>

#include <gtest/gtest.h>

#include "support/devices.h"
#include "support/guard_buffer.h"

namespace dsv4::test {
namespace {

void BlockRowsOnGpu(const ExecContext&, const BlockRowsArgs& a) {
  Mirror gpu;
  const auto n = static_cast<size_t>(a.step_tokens.dim(0));
  const std::vector<SequenceView> views(a.sequences, a.sequences + n);
  const Tensor blocks = gpu.Out({a.blocks, DType::kU8, {static_cast<int64_t>(n * sizeof(SequenceView))}});
  BlockRows(gpu.ctx(), {.step_tokens = gpu.In(a.step_tokens),
                        .step_positions = gpu.In(a.step_positions),
                        .sequences = gpu.Array(views),
                        .block = a.block,
                        .filler = a.filler,
                        .tokens = gpu.Out(a.tokens),
                        .positions = gpu.Out(a.positions),
                        .last = gpu.Out(a.last),
                        .sequence_of = gpu.Out(a.sequence_of),
                        .by_place = gpu.Out(a.by_place),
                        .blocks = static_cast<SequenceView*>(blocks.data)});
  gpu.Finish();
}

DSV4_DEVICE_TEST(BlockRows, EverySequenceGetsABlock) {
  for (const auto& c : Places(on, BlockRows, BlockRowsOnGpu)) {
    for (const int64_t s : {1, 3, 128}) {
      for (const int64_t b : {2, 5, 8}) {
        GuardBuffer<int32_t> step_tokens({s}), tokens({s * b}), sequence_of({s * b}), by_place({s * b});
        GuardBuffer<int64_t> step_positions({s}), positions({s * b}), last({s * b});
        std::vector<SequenceView> sequences(static_cast<size_t>(s)), blocks(static_cast<size_t>(s));
        uint8_t fixed = 0;
        for (int64_t i = 0; i < s; ++i) {
          step_tokens[i] = static_cast<int32_t>(100 + i);
          step_positions[i] = 1000 * i + 1;
          sequences[static_cast<size_t>(i)] = {.start = 1000 * i + 1, .begin = i, .end = i + 1, .fixed = &fixed};
        }
        c.run({.step_tokens = step_tokens.tensor(),
               .step_positions = step_positions.tensor(),
               .sequences = sequences.data(),
               .block = b,
               .filler = 7,
               .tokens = tokens.tensor(),
               .positions = positions.tensor(),
               .last = last.tensor(),
               .sequence_of = sequence_of.tensor(),
               .by_place = by_place.tensor(),
               .blocks = blocks.data()});
        for (int64_t i = 0; i < s * b; ++i) {
          const int64_t of = i / b, place = i % b;
          EXPECT_EQ(tokens[i], place == 0 ? 100 + of : 7) << c.name;
          EXPECT_EQ(positions[i], 1000 * of + 1 + place) << c.name;
          EXPECT_EQ(last[i], 1000 * of + b) << c.name;
          EXPECT_EQ(sequence_of[i], of) << c.name;
          EXPECT_EQ(by_place[place * s + of], i) << c.name;
        }
        for (int64_t i = 0; i < s; ++i) {
          const SequenceView& view = blocks[static_cast<size_t>(i)];
          EXPECT_TRUE(view.start == 1000 * i + 1 && view.begin == i * b && view.end == (i + 1) * b) << c.name;
          EXPECT_EQ(view.fixed, &fixed) << c.name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
