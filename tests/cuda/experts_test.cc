// Shapes and operands for which a GPU's kernels of decode rows have separate code. The tests for every device are in
// tests/ops/experts_test.cc.
#include "support/experts_fixture.h"

#include <array>
#include <cmath>

#include "ops/idle_row.h"
#include "support/compare.h"

namespace dsv4::test {
namespace {

constexpr ExpertsRun kOnGpu{.op = ExpertsOnGpu};

// Row pairs are distributed by cost: an expert with all tokens, and others with one each; more row pairs than blocks.
// Each is computed once: tokens have the same bits as alone.
TEST(CudaExperts, ChunksOfManyCostsShort) {
  DSV4_GPU_OR_SKIP();
  Random random(14);
  ExpertsLayer l(random, {WeightFormat::kNvfp4}, 20, 128, 512, 24, 2, /*hot=*/true);
  std::vector<float> alone;
  for (int64_t i = 0; i < l.t; ++i) {
    const std::vector<float> row = OutputOf(l, i, i + 1, kOnGpu);
    alone.insert(alone.end(), row.begin(), row.end());
  }
  for (const int64_t t : {4, 7, 16, 20, 24}) {  // 24: the kernel for chunks of up to eight
    EXPECT_TRUE(BitEqual(OutputOf(l, 0, t, kOnGpu), std::span(alone).first(static_cast<size_t>(t * l.d)))) << t;
  }
}

// Its items come first, and are requested before the choice is known. One or two row pairs per block, or none in most
// blocks.
TEST(CudaExperts, AnExpertKnownBeforehandChangesNoBit) {
  DSV4_GPU_OR_SKIP();
  struct Shape {
    int64_t d, f, slots;
  };
  for (const QuantCase& kind : ExpertQuantCases()) {
    Random random(12);
    for (const Shape& shape : {Shape{192, 96, 3}, Shape{256, 512, 7}, Shape{256, 2208, 3}, Shape{1088, 2048, 2}}) {
      const int32_t last = 7;
      ExpertsLayer l(random, kind, last + 1, shape.d, shape.f, 1, shape.slots);
      l.experts[0] = last;
      EXPECT_EQ(OutputOf(l, {.op = ExpertsOnGpu, .always = last}), OutputOf(l, kOnGpu))
          << kind.name() << " D " << shape.d << " F " << shape.f << " slots " << shape.slots;
    }
  }
}

// One token has separate kernels if the shapes allow it: its bits are the same as among more tokens.
void OneTokenHasTheBitsOfMore(std::initializer_list<std::array<int64_t, 4>> shapes) {
  for (const QuantCase& kind : ExpertQuantCases()) {
    if (InfoOf(kind.format).bits != 4) continue;
    Random random(13);
    for (const auto& [experts, d, f, slots] : shapes) {
      ExpertsLayer l(random, kind, experts, d, f, 2, slots);
      const std::vector<float> both = OutputOf(l, kOnGpu);
      for (const int64_t token : {0, 1}) {
        const auto want = std::span(both).subspan(static_cast<size_t>(token * d), static_cast<size_t>(d));
        for (const int32_t always : {-1, l.experts[token * slots]}) {
          EXPECT_TRUE(BitEqual(OutputOf(l, token, token + 1, {.op = ExpertsOnGpu, .always = always}), want))
              << kind.name() << ", D " << d << " F " << f << " known " << always;
        }
      }
    }
  }
}

// Flash's shapes, seven row pairs per block; Pro's D and F, with few rows; the smallest; chunks of two tiles.
TEST(CudaExperts, OneTokenHasTheBitsOfMore) {
  DSV4_GPU_OR_SKIP();
  OneTokenHasTheBitsOfMore({{2, 4096, 2048, 7}, {3, 7168, 192, 3}, {2, 320, 3072, 5}, {4, 1024, 2048, 4}});
}

// Little work, so that compute-sanitizer is fast.
TEST(CudaExperts, OneTokenShort) {
  DSV4_GPU_OR_SKIP();
  OneTokenHasTheBitsOfMore({{3, 1024, 1024, 3}});
}

struct FewShape {
  int64_t experts, d, f, slots;
};

// Two to six tokens also have a separate kernel: their bits are the same as among more tokens, which use
// ExpertGemmKernel. The last expert is choice 0 of every token, as a shared expert is; tokens may have no expert.
void AFewTokensHaveTheBitsOfMore(const QuantCase& kind, const FewShape& shape, std::initializer_list<int64_t> idle) {
  Random random(16);
  constexpr int64_t kAll = 20;
  ExpertsLayer l(random, kind, shape.experts, shape.d, shape.f, kAll, shape.slots);
  const auto last = static_cast<int32_t>(shape.experts - 1);
  for (int64_t i = 0; i < kAll; ++i) l.experts[i * shape.slots] = last;
  for (const int64_t i : idle) std::fill_n(l.experts.row(i).begin(), shape.slots, kNoExpert);
  const std::vector<float> all = OutputOf(l, kOnGpu);
  struct Part {
    int64_t first, t;
    bool known;
  };
  for (const Part& p : {Part{0, 2, true},
                        {8, 2, false},
                        {7, 3, true},
                        {0, 4, true},
                        {16, 4, false},
                        {12, 5, true},
                        {14, 6, true},
                        {0, 6, false},
                        {4, 8, true}}) {
    const auto want = std::span(all).subspan(static_cast<size_t>(p.first * l.d), static_cast<size_t>(p.t * l.d));
    const ExpertsRun run{.op = ExpertsOnGpu, .always = p.known ? last : -1};
    EXPECT_TRUE(BitEqual(OutputOf(l, p.first, p.first + p.t, run), want))
        << kind.name() << ", D " << l.d << " F " << l.f << " from " << p.first << " T " << p.t << " known " << p.known;
  }
}

// Flash's shapes; Pro's D; an expert twice in a token; steps in which the first row, or every row, is a padding row.
TEST(CudaExperts, AFewTokensHaveTheBitsOfMore) {
  DSV4_GPU_OR_SKIP();
  AFewTokensHaveTheBitsOfMore({WeightFormat::kNvfp4}, {3, 4096, 2048, 7}, {9});
  AFewTokensHaveTheBitsOfMore({WeightFormat::kNvfp4}, {2, 7168, 1024, 2}, {});
  AFewTokensHaveTheBitsOfMore({WeightFormat::kNvfp4}, {3, 4096, 1024, 7}, {9});  // of one of two ranks
  for (const QuantCase& kind : ExpertQuantCases()) {
    if (InfoOf(kind.format).bits == 4) AFewTokensHaveTheBitsOfMore(kind, {14, 1024, 1024, 7}, {0, 8, 9, 10, 19});
  }
  AFewTokensHaveTheBitsOfMore({WeightFormat::kNvfp4}, {6, 1024, 1024, 3}, {0, 1, 2, 3, 7, 8, 9, 10, 12, 13, 14});
}

// Little work, so that compute-sanitizer is fast.
TEST(CudaExperts, AFewTokensShort) {
  DSV4_GPU_OR_SKIP();
  AFewTokensHaveTheBitsOfMore({WeightFormat::kNvfp4}, {4, 1024, 1024, 3}, {8});
}

// Seven or more tokens have a separate kernel if K is whole stages: their bits are the same as in pairs or alone. The
// last expert is in tiles of `last`, as a shared expert may be, and every token has it.
struct ManyShape {
  int64_t experts, f, t, slots;
};
void ManyTokensHaveTheBitsOfFew(WeightFormat format, WeightFormat last, const ManyShape& shape,
                                std::initializer_list<int64_t> idle) {
  Random random(23);
  constexpr int64_t kD = 4096;
  ExpertsLayer l(random, {format}, shape.experts, kD, shape.f, shape.t, shape.slots);
  const QuantFixture gate(random, {last}, shape.f, kD), up(random, {last}, shape.f, kD),
      down(random, {last}, kD, shape.f);
  l.matrices.back() = {gate.tensor(), up.tensor(), down.tensor()};
  for (int64_t i = 0; i < l.t; ++i) l.experts[i * l.slots] = static_cast<int32_t>(shape.experts - 1);
  for (const int64_t i : idle) std::fill_n(l.experts.row(i).begin(), l.slots, kNoExpert);
  const std::vector<float> all = OutputOf(l, kOnGpu);
  for (int64_t i = 0; i < l.t; i += std::max<int64_t>(l.t / 4, 1)) {
    const std::vector<float> want = OutputOf(l, i, std::min(i + 2, l.t), kOnGpu);
    const auto got = std::span(all).subspan(static_cast<size_t>(i * l.d), want.size());
    EXPECT_TRUE(BitEqual(got, want)) << NameOf(format) << " F " << l.f << " T " << l.t << " from " << i;
  }
}

// Every number of stages that a row of down may have; a wide expert among tight ones; padding rows; several chunks per
// expert; enough chunks that a block has several; all rows except one are padding rows.
TEST(CudaExperts, ManyTokensHaveTheBitsOfFew) {
  DSV4_GPU_OR_SKIP();
  constexpr WeightFormat kWide = WeightFormat::kNvfp4, kTight = WeightFormat::kNvfp4Tight;
  ManyTokensHaveTheBitsOfFew(kWide, kWide, {2, 2048, 13, 2}, {4});
  ManyTokensHaveTheBitsOfFew(kTight, kWide, {3, 1024, 19, 3}, {0, 1});
  ManyTokensHaveTheBitsOfFew(kTight, kWide, {2, 512, 9, 2}, {});
  ManyTokensHaveTheBitsOfFew(WeightFormat::kMxfp4, WeightFormat::kMxfp4, {2, 512, 9, 2}, {});
  ManyTokensHaveTheBitsOfFew(WeightFormat::kMxfp4Tight, WeightFormat::kMxfp4Tight, {2, 512, 10, 2}, {});
  ManyTokensHaveTheBitsOfFew(kWide, kWide, {3, 512, 300, 4}, {});
  ManyTokensHaveTheBitsOfFew(kWide, kWide, {2, 512, 8, 2}, {0, 1, 2, 3, 4, 6, 7});
}

// Little work, so that compute-sanitizer is fast.
TEST(CudaExperts, ManyTokensShort) {
  DSV4_GPU_OR_SKIP();
  ManyTokensHaveTheBitsOfFew(WeightFormat::kNvfp4, WeightFormat::kNvfp4, {2, 512, 8, 2}, {3});
}

struct TightShape {
  int64_t experts, d, f, t, slots;
  bool hot = false;
};
// One token with its own kernels and with the others; a few; chunks of two blocks of columns; K of less than a tile,
// rows that end within a tile.
constexpr TightShape kTightShapes[] = {{1, 32, 32, 1, 1},           {3, 1024, 1024, 1, 3}, {2, 4096, 2048, 1, 7},
                                       {8, 160, 224, 1, 6},         {4, 64, 96, 5, 2},     {6, 192, 96, 20, 3, true},
                                       {3, 96, 64, 41, 2, true},    {16, 64, 32, 33, 3},   {5, 1056, 544, 2, 3},
                                       {20, 128, 512, 24, 2, true}, {5, 1024, 2048, 4, 3}, {4, 2048, 1024, 6, 2}};

void ExpectTheBitsOfWideTiles(ExpertsLayer& l, const ExpertsRun& run) {
  const std::vector<ExpertMatrices> tight = l.matrices;
  const std::vector<float> got = OutputOf(l, run);
  l.matrices = WithWideTiles(tight);
  EXPECT_TRUE(BitEqual(got, OutputOf(l, run)));
  l.matrices = tight;
}

// Smaller tiles of the same numbers change no bit.
TEST(CudaExperts, TightTilesGiveTheBitsOfWideOnes) {
  DSV4_GPU_OR_SKIP();
  Random random(21);
  for (const QuantCase& kind : TightQuantCases()) {
    for (const TightShape& c : kTightShapes) {
      SCOPED_TRACE(StrCat(kind.name(), " D ", c.d, " F ", c.f, " T ", c.t));
      ExpertsLayer l(random, kind, c.experts, c.d, c.f, c.t, c.slots, c.hot);
      ExpectTheBitsOfWideTiles(l, kOnGpu);
      ExpectTheBitsOfWideTiles(l, {.op = ExpertsOnGpu, .ctx = {.f32_inputs = true}});
      ExpectTheBitsOfWideTiles(l, {.op = ExpertsOnGpu, .activation = ActivationDtype::kFp8});
    }
  }
}

// The shared expert's scales are not powers of two: its tiles are wide among tight ones, first in the list of one
// token.
TEST(CudaExperts, AWideExpertAmongTightOnes) {
  DSV4_GPU_OR_SKIP();
  Random random(22);
  for (const TightShape& c : kTightShapes) {
    ExpertsLayer l(random, {WeightFormat::kNvfp4Tight}, c.experts + 1, c.d, c.f, c.t, c.slots, c.hot);
    const QuantFixture gate(random, {WeightFormat::kNvfp4}, c.f, c.d), up(random, {WeightFormat::kNvfp4}, c.f, c.d),
        down(random, {WeightFormat::kNvfp4}, c.d, c.f);
    l.matrices.back() = {gate.tensor(), up.tensor(), down.tensor()};
    const auto last = static_cast<int32_t>(c.experts);
    for (int64_t i = 0; i < l.t; ++i) {  // choice 0 of every token, and no other choice
      for (int64_t a = 0; a < l.slots; ++a) {
        int32_t& e = l.experts[i * l.slots + a];
        if (a == 0)
          e = last;
        else if (e == last)
          e = 0;
      }
    }
    for (const bool f32 : {false, true}) {
      for (const int32_t always : {-1, last}) {
        SCOPED_TRACE(StrCat("D ", c.d, " F ", c.f, " T ", c.t, " known ", always));
        ExpectTheBitsOfWideTiles(l, {.op = ExpertsOnGpu, .ctx = {.f32_inputs = f32}, .always = always});
      }
    }
  }
}

// Ids out of range stay in bounds; the other tokens are correct.
TEST(CudaExperts, Lesson21IdsOutOfRange) {
  DSV4_GPU_OR_SKIP();
  Random random(6);
  ExpertsLayer l(random, {WeightFormat::kNvfp4}, 4, 64, 32, 6, 2);
  const std::vector<float> want = OutputOf(l, kOnGpu);
  l.experts[0] = -1, l.experts[1] = 4, l.experts[2] = 1 << 30, l.experts[3] = -(1 << 30);
  const std::vector<float> got = OutputOf(l, kOnGpu);
  EXPECT_TRUE(BitEqual(std::span(got).subspan(2 * 64), std::span(want).subspan(2 * 64)));
  for (const float v : got) EXPECT_TRUE(std::isfinite(v));
  for (const float v : OutputOf(l, 0, 1, kOnGpu)) EXPECT_TRUE(std::isfinite(v));
}

void ExpertsOnGpuWithoutShared(const ExecContext& like, const ExpertsArgs& a) {
  ExpertsArgs without = a;
  without.shared = {};
  ExpertsOnGpu(like, without);
}

TEST(CudaExperts, WithoutSharedItIsZeros) {
  DSV4_GPU_OR_SKIP();
  Random random(31);
  for (const int64_t t : {1, 9}) {
    ExpertsLayer l(random, {WeightFormat::kNvfp4}, 5, 64, 96, t, 3);
    const std::vector<float> without = OutputOf(l, {.op = ExpertsOnGpuWithoutShared});
    std::fill_n(l.shared.data(), t * l.d, 0.0f);
    EXPECT_TRUE(BitEqual(without, OutputOf(l, kOnGpu)));
  }
}

}  // namespace
}  // namespace dsv4::test
