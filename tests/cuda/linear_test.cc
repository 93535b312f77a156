#include "ops/linear/linear.h"

#include <cmath>
#include <limits>

#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/input_parts.h"
#include "support/quant_fixture.h"

namespace dsv4 {
void LinearCuda(const ExecContext& ctx, const LinearArgs& args);
}

namespace dsv4::test {
namespace {

// What the kernels compute, in double: x as two BF16 numbers (`f32_inputs`: as it is) times the exact weights. Products of
// BF16 numbers are exact in float32; a tensor core adds 16 of them and the accumulator with at worst one truncation
// (2^-23 relative to the largest term) each, so K/16 steps, the partial sums (at most 128 + 8) and the factors stay within
// 2 gamma_(17 K/16 + 140) of the sum of magnitudes; F32 weights (FMA, K/32 + 5 additions) within less.
struct Expected {
  std::vector<double> y, bound;
};

Expected Exact(const std::vector<float>& x, const QuantFixture& w, int64_t num_tokens, int64_t groups, bool rounds) {
  const int64_t k_dim = w.tensor().cols, rows = w.tensor().rows, per_group = rows / groups;
  const std::vector<double> weights = w.Decoded();
  Expected e;
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t n = 0; n < rows; ++n) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < k_dim; ++k) {
        const float in = x[static_cast<size_t>((t * groups + n / per_group) * k_dim + k)];
        const double product = (rounds ? InParts(in, 2) : static_cast<double>(in)) * weights[static_cast<size_t>(n * k_dim + k)];
        sum += product;
        magnitude += std::fabs(product);
      }
      e.y.push_back(sum);
      e.bound.push_back(2 * Gamma(17 * CeilDiv(k_dim, 16) + 140) * magnitude + 0x1p-126);
    }
  }
  return e;
}

std::vector<float> RunLinear(const QuantTensor& w, const Tensor& x, int64_t num_tokens, int64_t groups, bool f32_inputs = false,
                             Regime regime = Regime::kDecode) {
  GuardBuffer<float> y({num_tokens, w.rows});
  Mirror gpu;
  gpu.ctx().f32_inputs = f32_inputs;
  gpu.ctx().regime = regime;
  LinearCuda(gpu.ctx(), {.x = gpu.In(x), .parts = {{gpu.Weight(w), gpu.Out(y.tensor())}}, .groups = groups});
  gpu.Finish();
  return y.values();
}

class CudaLinearFormats : public ::testing::TestWithParam<QuantCase> {};
INSTANTIATE_TEST_SUITE_P(Formats, CudaLinearFormats, ::testing::ValuesIn(AllQuantCases()),
                         [](const auto& test) { return test.param.name(); });

TEST_P(CudaLinearFormats, MatchesExactProducts) {
  DSV4_GPU_OR_SKIP();
  struct Case {
    int64_t t, n, k, groups;
  };
  Random random(1);
  const int64_t granule = ColumnGranule(GetParam().format);
  for (const Case c : {Case{1, 1, 1, 1},
                       {1, 5, 7, 1},
                       {2, 3, 129, 1},
                       {3, 24, 64, 1},
                       {4, 33, 250, 1},
                       {9, 130, 96, 1},
                       {8, 17, 520, 1},
                       {67, 19, 264, 1},
                       {33, 7, 40, 1},
                       {16, 300, 1100, 1},  // two slices
                       {1, 120, 80, 3},
                       {9, 60, 33, 4},
                       {5, 64, 96, 8},
                       {7, 48, 1030, 16},  // groups of three rows
                       {2, 96, 2100, 3},
                       {1, 40, 4096, 1},
                       {1, 520, 4100, 1},
                       {3, 700, 7168, 1}}) {
    const int64_t k = CeilDiv(c.k, granule) * granule;
    SCOPED_TRACE(StrCat("T ", c.t, " N ", c.n, " K ", k, " G ", c.groups));
    for (const int64_t offset : {int64_t{0}, int64_t{112}}) {
      if (offset > 0 && GetParam().format != WeightFormat::kFp8Block) continue;
      const QuantFixture w(random, GetParam(), c.n, k, {.unaligned = false, .scale_row_offset = offset});
      GuardBuffer<float> x({c.t, c.groups * k}, random.Normals(c.t * c.groups * k));
      const bool tiles = GetParam().format != WeightFormat::kF32;
      for (const bool f32 : {false, true}) {
        const Expected expected = Exact(x.values(), w, c.t, c.groups, tiles && !f32);
        const std::vector<float> y = RunLinear(w.tensor(), x.tensor(), c.t, c.groups, f32);
        EXPECT_TRUE(WithinBounds(y, expected.y, expected.bound)) << "f32 inputs " << f32;
        EXPECT_TRUE(BitEqual(RunLinear(w.tensor(), x.tensor(), c.t, c.groups, f32), y));
      }
    }
  }
}

TEST_P(CudaLinearFormats, RowsDoNotDependOnTheirBatch) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  const int64_t num_tokens = 67, granule = ColumnGranule(GetParam().format);
  // Whole rows in a warp, segments in a block, slices in a cluster (K 8192 from 3 tokens on), groups; chunks that are whole and not.
  for (const auto& [n, width, groups] :
       {std::tuple{int64_t{37}, int64_t{300}, int64_t{1}}, {600, 1100, 1}, {40, 8192, 1}, {66, 200, 3}, {192, 512, 3}, {70, 3584, 1}, {17000, 64, 1}}) {
    const int64_t k = CeilDiv(width, granule) * granule;
    SCOPED_TRACE(StrCat("N ", n, " K ", k, " G ", groups));
    const QuantFixture w(random, GetParam(), n, k, {.unaligned = false});
    GuardBuffer<float> x({num_tokens, groups * k}, random.Normals(num_tokens * groups * k));
    const std::vector<float> all = RunLinear(w.tensor(), x.tensor(), num_tokens, groups);
    for (const int64_t size : {1, 2, 7, 8, 9, 16, 17, 32, 33, 64}) {
      for (const int64_t first : {int64_t{0}, num_tokens - size}) {
        const Tensor part{x.data() + first * groups * k, DType::kF32, {size, groups * k}};
        const std::span<const float> want(all.data() + first * n, static_cast<size_t>(size * n));
        EXPECT_TRUE(BitEqual(RunLinear(w.tensor(), part, size, groups), want)) << size << " from " << first;
      }
    }
  }
}

// One token's groups, of whole row tiles and not, chunks that are whole and not: soon done under compute-sanitizer.
TEST_P(CudaLinearFormats, OneTokenGroupsShort) {
  DSV4_GPU_OR_SKIP();
  Random random(6);
  for (const auto& [n, k, groups] : {std::tuple{int64_t{192}, int64_t{2048}, int64_t{3}}, {96, 192, 2}, {66, 192, 3}}) {
    const QuantFixture w(random, GetParam(), n, k, {.unaligned = false});
    GuardBuffer<float> x({1, groups * k}, random.Normals(groups * k));
    const Expected expected = Exact(x.values(), w, 1, groups, GetParam().format != WeightFormat::kF32);
    EXPECT_TRUE(WithinBounds(RunLinear(w.tensor(), x.tensor(), 1, groups), expected.y, expected.bound)) << "N " << n;
  }
}

TEST_P(CudaLinearFormats, InfinityAndNanStayInTheirRow) {
  DSV4_GPU_OR_SKIP();
  Random random(4);
  const int64_t num_tokens = 9, n = 10, k = CeilDiv(int64_t{45}, ColumnGranule(GetParam().format)) * ColumnGranule(GetParam().format);
  const QuantFixture w(random, GetParam(), n, k, {.unaligned = false});
  GuardBuffer<float> x({num_tokens, k}, random.Normals(num_tokens * k)), want({num_tokens, n});
  x[3 * k + k - 1] = std::numeric_limits<float>::quiet_NaN();
  x[5 * k] = std::numeric_limits<float>::infinity();
  Linear({.reference_ops = true}, {.x = x.tensor(), .parts = {{w.tensor(), want.tensor()}}});
  for (const bool f32 : {false, true}) {
    const std::vector<float> y = RunLinear(w.tensor(), x.tensor(), num_tokens, 1, f32);
    for (int64_t i = 0; i < want.size(); ++i) EXPECT_EQ(std::isfinite(y[static_cast<size_t>(i)]), std::isfinite(want[i])) << i;
  }
}

TEST(CudaLinear, EveryFp8CodeDecodesExactly) {
  DSV4_GPU_OR_SKIP();
  std::vector<uint8_t> codes(256 * 16, 0);
  for (size_t n = 0; n < 256; ++n) codes[n * 16 + n % 16] = static_cast<uint8_t>(n);
  for (const uint8_t exponent : {uint8_t{0}, uint8_t{1}, uint8_t{100}, uint8_t{127}, uint8_t{240}, uint8_t{255}}) {
    const std::vector<uint8_t> scales(2, exponent);
    const QuantTensor w{.format = WeightFormat::kFp8Block, .rows = 256, .cols = 16, .codes = codes.data(), .block_scale = scales.data(), .scale_dtype = DType::kF8E8M0};
    for (const int64_t t : {1, 4}) {
      GuardBuffer<float> x({t, 16}, std::vector<float>(static_cast<size_t>(16 * t), 1.0f));
      const std::vector<float> y = RunLinear(w, x.tensor(), t, 1);
      for (int64_t n = 0; n < 256; ++n) {
        const double want = WeightValue(w, n, n % 16);
        const float got = y[static_cast<size_t>((t - 1) * 256 + n)];
        if (std::isnan(want)) {
          EXPECT_TRUE(std::isnan(got)) << n;
        } else {
          EXPECT_EQ(got, static_cast<float>(want)) << n;
        }
      }
    }
  }
}

// 0.5 is a subnormal on its way, NVFP4's sums carry a factor 2^-8, MXFP4's scales reach over all of BF16's range.
TEST(CudaLinear, EveryFp4CodeAndScaleDecodesExactly) {
  DSV4_GPU_OR_SKIP();
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kNvfp4}) {
    const int64_t block = format == WeightFormat::kMxfp4 ? kMxfp4BlockSize : kNvfp4BlockSize;
    std::vector<uint8_t> codes(static_cast<size_t>(256 * block / 2)), scales(256);
    for (size_t n = 0; n < 256; ++n) scales[n] = static_cast<uint8_t>(n);
    for (int64_t code = 0; code < 16; ++code) {
      std::fill(codes.begin(), codes.end(), static_cast<uint8_t>(code | (code << 4)));
      const QuantTensor w{.format = format, .rows = 256, .cols = block, .codes = codes.data(), .block_scale = scales.data()};
      for (int64_t k = 0; k < block; ++k) {
        std::vector<float> one(static_cast<size_t>(block));
        one[static_cast<size_t>(k)] = 1.0f;
        GuardBuffer<float> x({1, block}, one);
        const std::vector<float> y = RunLinear(w, x.tensor(), 1, 1);
        for (int64_t n = 0; n < 256; ++n) {
          const float want = static_cast<float>(WeightValue(w, n, k)), got = y[static_cast<size_t>(n)];
          if (std::isfinite(want)) {
            // 4 and 6 times 2^126 are still finite, but not beside zeros times the same code.
            EXPECT_TRUE(got == want) << n << " code " << code << " k " << k << ": " << got << " for " << want;
          } else {
            EXPECT_FALSE(std::isfinite(got)) << n;
          }
        }
      }
    }
  }
}

// A square of true size: every multiprocessor has work, clusters of eight, several rounds.
TEST(CudaLinear, TrueShapes) {
  DSV4_GPU_OR_SKIP();
  Random random(5);
  for (const auto& [n, k, groups] : {std::tuple{int64_t{2048}, int64_t{4096}, int64_t{1}}, {4096, 2048, 1}, {4096, 1024, 4}, {256, 8192, 1}}) {
    for (const WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kFp8Block}) {
      SCOPED_TRACE(StrCat("N ", n, " K ", k, " G ", groups));
      const QuantFixture w(random, {format}, n, k, {.unaligned = false});
      const int64_t t = 2;
      GuardBuffer<float> x({t, groups * k}, random.Normals(t * groups * k));
      const Expected expected = Exact(x.values(), w, t, groups, true);
      const std::vector<float> y = RunLinear(w.tensor(), x.tensor(), t, groups);
      EXPECT_TRUE(WithinBounds(y, expected.y, expected.bound));
      EXPECT_TRUE(BitEqual(RunLinear(w.tensor(), {x.data(), DType::kF32, {1, groups * k}}, 1, groups), std::span(y).first(static_cast<size_t>(n))));
    }
  }
}

// Rings and inputs of 17 tokens are together what a block may have on Hopper, without what the kernel declares itself: then the
// rings must be shorter.
TEST(CudaLinear, InputsThatFillSharedMemory) {
  DSV4_GPU_OR_SKIP();
  Random random(7);
  const int64_t n = 16 * 8 * 132, k = 1792, t = 17;
  const QuantFixture w(random, {WeightFormat::kNvfp4}, n, k, {.unaligned = false});
  GuardBuffer<float> x({t, k}, random.Normals(t * k));
  const std::vector<float> all = RunLinear(w.tensor(), x.tensor(), t, 1);
  for (const auto& [first, size] : {std::pair<int64_t, int64_t>{0, 16}, {16, 1}}) {
    const Tensor part{x.data() + first * k, DType::kF32, {size, k}};
    EXPECT_TRUE(BitEqual(RunLinear(w.tensor(), part, size, 1), std::span(all).subspan(static_cast<size_t>(first * n), static_cast<size_t>(size * n)))) << first;
  }
}

}  // namespace
}  // namespace dsv4::test
