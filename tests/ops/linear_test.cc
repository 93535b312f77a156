#include "ops/linear/linear.h"

#include <cmath>
#include <limits>

#include "ops/kernels.h"
#include "ops/linear_split.h"
#include "support/compare.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

DSV4_DECLARE_PRODUCT_KERNELS(LinearCpu, LinearArgs)

namespace dsv4::test {
namespace {

const std::vector<Kernel<LinearArgs>> kLinearKernels = DSV4_PRODUCT_KERNELS(LinearCpu);

// |got - sum_k x w| <= gamma_n sum_k |x| |w|. A product passes through at most n roundings: its own (generic kernel),
// 32 additions in a lane of its chunk, an addition (and for FP8 a multiplication) per chunk of 128 columns, 3 additions
// of lanes, the global scale; the reference rounds once.
int64_t NumRoundings(int64_t k) { return std::min<int64_t>(CeilDiv(k, 8), 32) + 2 * CeilDiv(k, 128) + 6; }

// On AMX tiles: 16 additions in a step of 32 columns, the sum of two, an addition per step of a chunk and, as above, for
// each chunk; two for the three parts of an input; the global scale; the reference. Numbers below 2^-126 may be lost: each of
// three products and three sums a column, at most.
int64_t NumTileRoundings(int64_t k) {
  return std::min<int64_t>(CeilDiv(k, 2), 16) + 1 + std::min<int64_t>(CeilDiv(k, 32), 8) + 2 * CeilDiv(k, 128) + 5;
}

struct Expected {
  std::vector<double> y, bound, tile_bound;
};

Expected Exact(const std::vector<float>& x, const QuantFixture& w, int64_t num_tokens, int64_t groups) {
  const int64_t k_dim = w.tensor().cols, rows = w.tensor().rows, per_group = rows / groups;
  const std::vector<double> weights = w.Decoded();
  Expected e;
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t n = 0; n < rows; ++n) {
      double sum = 0, magnitude = 0, largest = 1;
      for (int64_t k = 0; k < k_dim; ++k) {
        const double product = static_cast<double>(
                                   x[static_cast<size_t>((t * groups + n / per_group) * k_dim + k)]) *
                               weights[static_cast<size_t>(n * k_dim + k)];
        largest = std::max(largest, std::fabs(static_cast<double>(x[static_cast<size_t>((t * groups + n / per_group) * k_dim + k)])));
        sum += product;
        magnitude += std::fabs(product);
      }
      e.y.push_back(sum);
      e.bound.push_back(Gamma(NumRoundings(k_dim)) * magnitude);
      e.tile_bound.push_back(Gamma(NumTileRoundings(k_dim)) * magnitude + static_cast<double>(6 * k_dim) * 0x1p-126 * largest);
    }
  }
  return e;
}

class LinearFormats : public ::testing::TestWithParam<QuantCase> {};
INSTANTIATE_TEST_SUITE_P(Formats, LinearFormats, ::testing::ValuesIn(AllQuantCases()),
                         [](const auto& test) { return test.param.name(); });

TEST_P(LinearFormats, MatchesExactProducts) {
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
                       {5, 130, 96, 1},
                       {8, 17, 520, 1},
                       {67, 19, 264, 1},
                       {100, 7, 40, 1},
                       {200, 3, 31, 1},
                       {1, 120, 80, 3},
                       {9, 60, 33, 4},
                       {1, 24, 1024, 1}}) {
    const int64_t k = CeilDiv(c.k, granule) * granule;
    SCOPED_TRACE(StrCat("T ", c.t, " N ", c.n, " K ", k, " G ", c.groups));
    for (const int64_t offset : {int64_t{0}, int64_t{100}}) {
      const QuantFixture w(random, GetParam(), c.n, k, {.scale_row_offset = offset});
      GuardBuffer<float> x({c.t, c.groups * k}, random.Normals(c.t * c.groups * k));
      const Expected expected = Exact(x.values(), w, c.t, c.groups);
      ForEachKernel(kLinearKernels, [&](const auto run, bool tiles) {
        GuardBuffer<float> y({c.t, c.n});
        run(TwoThreads(), {.x = x.tensor(), .parts = {{w.tensor(), y.tensor()}}, .groups = c.groups});
        EXPECT_TRUE(WithinBounds(y.span(), expected.y, tiles ? expected.tile_bound : expected.bound));
      });
      GuardBuffer<float> y({c.t, c.n});
      Linear(Reference(), {.x = x.tensor(), .parts = {{w.tensor(), y.tensor()}}, .groups = c.groups});
      EXPECT_TRUE(WithinBounds(y.span(), expected.y, expected.bound));
    }
  }
}

TEST_P(LinearFormats, RowsDoNotDependOnTheirBatch) {
  Random random(2);
  const int64_t num_tokens = 67, n = 37, granule = ColumnGranule(GetParam().format);
  for (const int64_t k : {CeilDiv(int64_t{300}, granule) * granule, CeilDiv(int64_t{61}, granule) * granule}) {
    const QuantFixture w(random, GetParam(), n, k, {.scale_row_offset = 113});
    GuardBuffer<float> x({num_tokens, k}, random.Normals(num_tokens * k));
    ForEachKernel(kLinearKernels, [&](const auto run) {
      GuardBuffer<float> all({num_tokens, n});
      run({}, {.x = x.tensor(), .parts = {{w.tensor(), all.tensor()}}});
      for (const ExecContext& ctx : ThreadCounts()) {
        for (const int64_t size : {1, 2, 3, 4, 8, 66, 67}) {
          for (const int64_t first : {int64_t{0}, num_tokens - size}) {
            GuardBuffer<float> y({size, n});
            run(ctx, {.x = {x.data() + first * k, DType::kF32, {size, k}}, .parts = {{w.tensor(), y.tensor()}}});
            EXPECT_TRUE(BitEqual(
                y.span(), all.span().subspan(static_cast<size_t>(first * n), static_cast<size_t>(size * n))));
          }
        }
      }
    });
  }
}

TEST_P(LinearFormats, ManyTokensAndFewRowsSplitByToken) {
  ExpectSplitByTokenKeepsBits(kLinearKernels, GetParam(), ActivationDtype::kNative, 3);
}

TEST_P(LinearFormats, InfinityAndNanStayInTheirRow) {
  Random random(4);
  const int64_t num_tokens = 9, n = 10,
                k = CeilDiv(int64_t{45}, ColumnGranule(GetParam().format)) * ColumnGranule(GetParam().format);
  const QuantFixture w(random, GetParam(), n, k);
  GuardBuffer<float> x({num_tokens, k}, random.Normals(num_tokens * k));
  x[3 * k + k - 1] = std::numeric_limits<float>::quiet_NaN();
  x[5 * k] = std::numeric_limits<float>::infinity();
  GuardBuffer<float> want({num_tokens, n});
  Linear(Reference(), {.x = x.tensor(), .parts = {{w.tensor(), want.tensor()}}});
  ForEachKernel(kLinearKernels, [&](const auto run) {
    GuardBuffer<float> y({num_tokens, n});
    run({}, {.x = x.tensor(), .parts = {{w.tensor(), y.tensor()}}});
    for (int64_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isfinite(y[i]), std::isfinite(want[i])) << i;
  });
}

TEST(Linear, EveryFp8CodeDecodesExactly) {
  std::vector<uint8_t> codes(256 * 16, 0);
  for (size_t n = 0; n < 256; ++n) codes[n * 16 + n % 16] = static_cast<uint8_t>(n);
  for (const uint8_t exponent :
       {uint8_t{0}, uint8_t{1}, uint8_t{100}, uint8_t{127}, uint8_t{240}, uint8_t{255}}) {
    const std::vector<uint8_t> scales(2, exponent);
    const QuantTensor w{.format = WeightFormat::kFp8Block,
                        .rows = 256,
                        .cols = 16,
                        .codes = codes.data(),
                        .block_scale = scales.data(),
                        .scale_dtype = DType::kF8E8M0};
    GuardBuffer<float> x({4, 16}, std::vector<float>(64, 1.0f));
    ForEachKernel(kLinearKernels, [&](const auto run) {
      for (const int64_t t : {1, 4}) {
        GuardBuffer<float> y({t, 256});
        run({}, {.x = x.tensor().Head(t), .parts = {{w, y.tensor()}}});
        for (int64_t n = 0; n < 256; ++n) {
          const double want = WeightValue(w, n, n % 16);
          if (std::isnan(want)) {
            EXPECT_TRUE(std::isnan(y[n])) << n;
          } else {
            EXPECT_EQ(y[n], static_cast<float>(want)) << n;
          }
        }
      }
    });
  }
}

TEST(Linear, EveryFp4CodeAndScaleDecodesExactly) {
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kNvfp4}) {
    const int64_t block = format == WeightFormat::kMxfp4 ? kMxfp4BlockSize : kNvfp4BlockSize;
    std::vector<uint8_t> codes(static_cast<size_t>(256 * block / 2)), scales(256);
    for (size_t n = 0; n < 256; ++n) scales[n] = static_cast<uint8_t>(n);
    for (int64_t code = 0; code < 16; ++code) {
      std::fill(codes.begin(), codes.end(), static_cast<uint8_t>(code | (code << 4)));
      const QuantTensor w{
          .format = format, .rows = 256, .cols = block, .codes = codes.data(), .block_scale = scales.data()};
      for (const int64_t k : {int64_t{0}, block - 1}) {
        std::vector<float> one(static_cast<size_t>(block));
        one[static_cast<size_t>(k)] = 1.0f;
        GuardBuffer<float> x({1, block}, one);
        ForEachKernel(kLinearKernels, [&](const auto run, bool tiles) {
          GuardBuffer<float> y({1, 256});
          run({}, {.x = x.tensor(), .parts = {{w, y.tensor()}}});
          for (int64_t n = 0; n < 256; ++n) {
            const float want = static_cast<float>(WeightValue(w, n, k));
            if (tiles && std::fabs(want) < 0x1p-126f) {
              EXPECT_EQ(y[n], 0.0f) << n;  // no subnormal numbers on tiles
            } else if (std::isfinite(want)) {
              EXPECT_EQ(y[n], want) << n << " code " << code;
            } else {  // a NaN scale, or 4 * 2^127 times the zeros beside it
              EXPECT_FALSE(std::isfinite(y[n])) << n;
            }
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
