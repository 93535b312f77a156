#include "ops/previous_rows/previous_rows.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

constexpr int64_t kOffset = 64;

// Sequences whose fixed blocks contain only a ring, after kOffset bytes.
struct Rings {
  Rings(std::vector<SequenceView> v, int64_t ring_slots, int64_t row_width)
      : views(std::move(v)), slots(ring_slots), width(row_width) {
    Random random(7);
    for (SequenceView& view : views) {
      blocks.push_back(random.Normals(kOffset / 4 + slots * width));
      view.fixed = reinterpret_cast<uint8_t*>(blocks.back().data());
    }
  }
  float* slot(size_t s, int64_t position) { return blocks[s].data() + kOffset / 4 + position % slots * width; }

  std::vector<SequenceView> views;
  int64_t slots, width;
  std::vector<std::vector<float>> blocks;
};

void PreviousRowsOnGpu(const ExecContext&, const PreviousRowsArgs& a) {
  Mirror gpu;
  const Tensor& any = a.x ? a.x : a.y;
  const int64_t width = any.num_elements() / any.dim(0);
  std::vector<SequenceView> views(a.sequences, a.sequences + a.num_sequences);
  for (SequenceView& view : views) {
    const Tensor block{view.fixed, DType::kU8, {a.offset + a.slots * width * 4}};
    view.fixed = static_cast<uint8_t*>(gpu.Out(block).data);
  }
  PreviousRowsArgs on_gpu = a;
  on_gpu.x = a.x && a.x.data == a.y.data ? gpu.Out(a.x) : gpu.In(a.x);
  on_gpu.y = a.x && a.x.data == a.y.data ? on_gpu.x : gpu.Out(a.y);
  on_gpu.sequences = gpu.Array(views);
  PreviousRows(gpu.ctx(), on_gpu);
  gpu.Finish();
}

const std::vector<SequenceView> kSequences = {
    {.start = 0, .begin = 0, .end = 1},   {.start = 0, .begin = 1, .end = 20},  {.start = 5, .begin = 20, .end = 21},
    {.start = 7, .begin = 21, .end = 29}, {.start = 9, .begin = 29, .end = 29}, {.start = 3, .begin = 29, .end = 33}};

DSV4_DEVICE_TEST(PreviousRows, ReadsTheRowBeforeAndKeepsTheLast) {
  const int64_t t = 33;
  for (const int64_t width : {1, 33, 4 * 129}) {
    for (const bool in_place : {false, true}) {
      for (const auto& c : Places(on, PreviousRows, PreviousRowsOnGpu)) {
        Rings rings(kSequences, 8, width), before(kSequences, 8, width);
        Random random(3);
        const std::vector<float> rows = random.Hostiles(t * width);
        GuardBuffer<float> x(Shape{t, width}, rows), other(Shape{t, width});
        GuardBuffer<float>& y = in_place ? x : other;
        c.run({.x = x.tensor(),
               .y = y.tensor(),
               .sequences = rings.views.data(),
               .num_sequences = static_cast<int64_t>(rings.views.size()),
               .offset = kOffset,
               .slots = 8});
        const auto row = [&](int64_t i) { return rows.begin() + i * width; };
        for (size_t s = 0; s < rings.views.size(); ++s) {
          const SequenceView& seq = rings.views[s];
          for (int64_t i = seq.begin; i < seq.end; ++i) {
            std::vector<float> want(static_cast<size_t>(width), 0.0f);
            if (i > seq.begin) {
              want.assign(row(i - 1), row(i));
            } else if (seq.start > 0) {
              want.assign(before.slot(s, seq.start - 1), before.slot(s, seq.start - 1) + width);
            }
            EXPECT_TRUE(BitEqual(y.row(i), want)) << c.name << " row " << i;
          }
          // The last eight tokens are stored; other ring rows, and the bytes before the ring, do not change.
          for (int64_t i = std::max(seq.begin, seq.end - 8); i < seq.end; ++i)
            std::copy(row(i), row(i + 1), before.slot(s, seq.start + i - seq.begin));
          EXPECT_TRUE(BitEqual(rings.blocks[s], before.blocks[s])) << c.name << " sequence " << s;
        }
      }
    }
  }
}

DSV4_DEVICE_TEST(PreviousRows, ReadsOnlyOrKeepsOnly) {
  const int64_t width = 40, s = 3;
  for (const auto& c : Places(on, PreviousRows, PreviousRowsOnGpu)) {
    Rings rings({{.start = 1, .begin = 0, .end = 1},
                 {.start = 16, .begin = 1, .end = 2},
                 {.start = 1000, .begin = 2, .end = 3}},
                8, width);
    const std::vector<std::vector<float>> before = rings.blocks;
    GuardBuffer<float> y(Shape{s, width});
    c.run({.y = y.tensor(), .sequences = rings.views.data(), .num_sequences = s, .offset = kOffset, .slots = 8});
    EXPECT_EQ(rings.blocks, before) << c.name;
    for (int64_t i = 0; i < s; ++i) {
      const float* want = rings.slot(static_cast<size_t>(i), rings.views[static_cast<size_t>(i)].start - 1);
      EXPECT_TRUE(BitEqual(y.row(i), std::vector<float>(want, want + width))) << c.name;
    }
    c.run({.x = y.tensor(), .sequences = rings.views.data(), .num_sequences = s, .offset = kOffset, .slots = 8});
    for (int64_t i = 0; i < s; ++i) {
      const float* kept = rings.slot(static_cast<size_t>(i), rings.views[static_cast<size_t>(i)].start);
      EXPECT_TRUE(BitEqual(y.row(i), std::vector<float>(kept, kept + width))) << c.name;
    }
  }
}

TEST(PreviousRowsDeathTest, RefusesArgumentsThatDoNotFit) {
  GuardBuffer<float> x(Shape{2, 3}, std::vector<float>(6, 1.0f));
  EXPECT_DEATH(PreviousRows({}, {.slots = 8}), "a.x");
  EXPECT_DEATH(PreviousRows({}, {.y = x.tensor(), .num_sequences = 1, .slots = 8}), "num_sequences");
}

}  // namespace
}  // namespace dsv4::test
