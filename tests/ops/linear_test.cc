#include "ops/linear/linear.h"

#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include "ops/kernels.h"
#include "ops/linear_split.h"
#include "support/compare.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/linear_fixture.h"
#include "support/quant_fixture.h"

DSV4_DECLARE_PRODUCT_KERNELS(LinearCpu, LinearArgs)

namespace dsv4::test {
namespace {

const std::vector<Kernel<LinearArgs>> kLinearKernels = DSV4_PRODUCT_KERNELS(LinearCpu);

template <typename Fn>
void ForEachWay(On on, const Fn& fn) {
  if (on == On::kGpu) {
    fn(LinearWay{LinearSums::kGpu, nullptr});
    SCOPED_TRACE("float32 inputs");
    return fn(LinearWay{LinearSums::kGpuF32Inputs, nullptr});
  }
  ForEachKernel(kLinearKernels, [&](const auto run, bool tiles) {
    fn(LinearWay{tiles ? LinearSums::kAmx : LinearSums::kLanes, run});
  });
}

// Calls fn(kind) for every format.
template <typename Fn>
void ForEachFormat(const Fn& fn) {
  for (const QuantCase& kind : AllQuantCases()) {
    SCOPED_TRACE(kind.name());
    fn(kind);
  }
}

// A GPU's weights are aligned, and an FP8 view begins at a tile's row of its grid.
QuantOptions OptionsOn(On on, int64_t cpu_offset, int64_t gpu_offset) {
  return on == On::kGpu ? QuantOptions{.unaligned = false, .scale_row_offset = gpu_offset}
                        : QuantOptions{.scale_row_offset = cpu_offset};
}

struct LinearCase {
  int64_t t, n, k, groups;
};
const LinearCase kLinearCases[] = {{1, 1, 1, 1},
                                   {1, 5, 7, 1},
                                   {2, 3, 129, 1},
                                   {3, 24, 64, 1},
                                   {4, 33, 250, 1},
                                   {5, 130, 96, 1},
                                   {9, 130, 96, 1},
                                   {8, 17, 520, 1},
                                   {67, 19, 264, 1},
                                   {33, 7, 40, 1},
                                   {100, 7, 40, 1},
                                   {200, 3, 31, 1},
                                   {1, 120, 80, 3},
                                   {9, 60, 33, 4},
                                   {5, 64, 96, 8},
                                   {1, 24, 1024, 1},
                                   // slices of K; groups of three rows; many multiprocessors
                                   {16, 300, 1100, 1},
                                   {7, 48, 1030, 16},
                                   {2, 96, 2100, 3},
                                   {1, 40, 4096, 1}};
const LinearCase kLinearCasesOfGpus[] = {{1, 520, 4100, 1}, {3, 700, 7168, 1}};

void ExpectExactProducts(On on, const QuantCase& kind, const LinearCase& c) {
  Random random(1);
  const int64_t granule = ColumnGranule(kind.format), k = CeilDiv(c.k, granule) * granule;
  SCOPED_TRACE(StrCat("T ", c.t, " N ", c.n, " K ", k, " G ", c.groups));
  for (const bool offset : {false, true}) {
    if (offset && on == On::kGpu && kind.format != WeightFormat::kFp8Block) continue;
    const QuantFixture w(random, kind, c.n, k, OptionsOn(on, offset ? 100 : 0, offset ? 112 : 0));
    GuardBuffer<float> x({c.t, c.groups * k}, random.Normals(c.t * c.groups * k));
    ForEachWay(on, [&](LinearWay way) {
      way.ctx = TwoThreads();
      const ExactLinear expected = ExactOf(way.sums, x.values(), w, c.t, c.groups);
      const std::vector<float> y = way.Run(w.tensor(), x.tensor(), c.groups);
      EXPECT_TRUE(WithinBounds(y, expected.y, expected.bound));
      EXPECT_TRUE(BitEqual(way.Run(w.tensor(), x.tensor(), c.groups), y));
    });
    if (on == On::kGpu) continue;
    const ExactLinear expected = ExactOf(LinearSums::kLanes, x.values(), w, c.t, c.groups);
    GuardBuffer<float> y({c.t, c.n});
    Linear(Reference(), {.x = x.tensor(), .parts = {{w.tensor(), y.tensor()}}, .groups = c.groups});
    EXPECT_TRUE(WithinBounds(y.span(), expected.y, expected.bound));
  }
}

DSV4_DEVICE_TEST(Linear, MatchesExactProducts) {
  ForEachFormat([&](const QuantCase& kind) {
    for (const LinearCase& c : kLinearCases) ExpectExactProducts(on, kind, c);
    if (on == On::kCpu) return;
    for (const LinearCase& c : kLinearCasesOfGpus) ExpectExactProducts(on, kind, c);
  });
}

// On a GPU: whole rows in a warp, segments in a block, slices in a cluster (K 8192 from 3 tokens), groups; whole and
// incomplete chunks.
DSV4_DEVICE_TEST(Linear, RowsDoNotDependOnTheirBatch) {
  using Size = std::tuple<int64_t, int64_t, int64_t>;  // N, K, groups
  const std::vector<Size> sizes = on == On::kCpu
                                      ? std::vector<Size>{{37, 300, 1}, {37, 61, 1}, {66, 40, 3}}
                                      : std::vector<Size>{{37, 300, 1},  {600, 1100, 1}, {40, 8192, 1}, {66, 200, 3},
                                                          {192, 512, 3}, {70, 3584, 1},  {17000, 64, 1}};
  const int64_t num_tokens = 67;
  ForEachFormat([&](const QuantCase& kind) {
    Random random(2);
    for (const auto& [n, width, groups] : sizes) {
      const int64_t granule = ColumnGranule(kind.format), k = CeilDiv(width, granule) * granule;
      SCOPED_TRACE(StrCat("N ", n, " K ", k, " G ", groups));
      const QuantFixture w(random, kind, n, k, OptionsOn(on, 113, 0));
      GuardBuffer<float> x({num_tokens, groups * k}, random.Normals(num_tokens * groups * k));
      ForEachWay(on, [&](LinearWay way) {
        if (way.sums == LinearSums::kGpuF32Inputs) return;
        const std::vector<float> all = way.Run(w.tensor(), x.tensor(), groups);
        for (const ExecContext& ctx : way.on_gpu() ? std::vector<ExecContext>{{}} : ThreadCounts()) {
          way.ctx = ctx;
          for (const int64_t size : {1, 2, 3, 4, 7, 8, 9, 16, 17, 32, 33, 64, 66, 67}) {
            for (const int64_t first : {int64_t{0}, num_tokens - size}) {
              const Tensor part{x.data() + first * groups * k, DType::kF32, {size, groups * k}};
              const std::span<const float> want(all.data() + first * n, static_cast<size_t>(size * n));
              EXPECT_TRUE(BitEqual(way.Run(w.tensor(), part, groups), want)) << size << " from " << first;
            }
          }
        }
      });
    }
  });
}

class LinearFormats : public ::testing::TestWithParam<QuantCase> {};
INSTANTIATE_TEST_SUITE_P(Formats, LinearFormats, ::testing::ValuesIn(AllQuantCases()),
                         [](const auto& test) { return test.param.name(); });

TEST_P(LinearFormats, ManyTokensAndFewRowsSplitByToken) {
  ExpectSplitByTokenKeepsBits(kLinearKernels, GetParam(), ActivationDtype::kNative, 3);
}

DSV4_DEVICE_TEST(Linear, InfinityAndNanStayInTheirRow) {
  ForEachFormat([&](const QuantCase& kind) {
    Random random(4);
    const int64_t granule = ColumnGranule(kind.format), num_tokens = 9, n = 10,
                  k = CeilDiv(int64_t{45}, granule) * granule;
    const QuantFixture w(random, kind, n, k, OptionsOn(on, 0, 0));
    GuardBuffer<float> x({num_tokens, k}, random.Normals(num_tokens * k)), want({num_tokens, n});
    x[3 * k + k - 1] = std::numeric_limits<float>::quiet_NaN();
    x[5 * k] = std::numeric_limits<float>::infinity();
    Linear(Reference(), {.x = x.tensor(), .parts = {{w.tensor(), want.tensor()}}});
    ForEachWay(on, [&](const LinearWay& way) {
      const std::vector<float> y = way.Run(w.tensor(), x.tensor());
      for (int64_t i = 0; i < want.size(); ++i)
        EXPECT_EQ(std::isfinite(y[static_cast<size_t>(i)]), std::isfinite(want[i])) << i;
    });
  });
}

DSV4_DEVICE_TEST(Linear, EveryFp8CodeDecodesExactly) {
  std::vector<uint8_t> codes(256 * 16, 0);
  for (size_t n = 0; n < 256; ++n) codes[n * 16 + n % 16] = static_cast<uint8_t>(n);
  for (const uint8_t exponent : {uint8_t{0}, uint8_t{1}, uint8_t{100}, uint8_t{127}, uint8_t{240}, uint8_t{255}}) {
    const std::vector<uint8_t> scales(2, exponent);
    const QuantTensor w{.format = WeightFormat::kFp8Block,
                        .rows = 256,
                        .cols = 16,
                        .codes = codes.data(),
                        .block_scale = scales.data(),
                        .scale_dtype = DType::kF8E8M0};
    GuardBuffer<float> x({4, 16}, std::vector<float>(64, 1.0f));
    ForEachWay(on, [&](const LinearWay& way) {
      if (way.sums == LinearSums::kGpuF32Inputs) return;
      for (const int64_t t : {1, 4}) {
        const std::vector<float> y = way.Run(w, x.tensor().Head(t));
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
    });
  }
}

// On a GPU 0.5 is a subnormal during decoding, NVFP4's sums carry a factor 2^-8, and MXFP4's scales cover all of BF16's
// range.
DSV4_DEVICE_TEST(Linear, EveryFp4CodeAndScaleDecodesExactly) {
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kNvfp4}) {
    const int64_t block = format == WeightFormat::kMxfp4 ? kMxfp4BlockSize : kNvfp4BlockSize;
    std::vector<uint8_t> codes(static_cast<size_t>(256 * block / 2)), scales(256);
    for (size_t n = 0; n < 256; ++n) scales[n] = static_cast<uint8_t>(n);
    for (int64_t code = 0; code < 16; ++code) {
      std::fill(codes.begin(), codes.end(), static_cast<uint8_t>(code | (code << 4)));
      const QuantTensor w{
          .format = format, .rows = 256, .cols = block, .codes = codes.data(), .block_scale = scales.data()};
      for (int64_t k = 0; k < block; k += on == On::kGpu ? 1 : block - 1) {
        std::vector<float> one(static_cast<size_t>(block));
        one[static_cast<size_t>(k)] = 1.0f;
        GuardBuffer<float> x({1, block}, one);
        ForEachWay(on, [&](const LinearWay& way) {
          if (way.sums == LinearSums::kGpuF32Inputs) return;
          const std::vector<float> y = way.Run(w, x.tensor());
          for (int64_t n = 0; n < 256; ++n) {
            const float want = static_cast<float>(WeightValue(w, n, k)), got = y[static_cast<size_t>(n)];
            if (way.sums == LinearSums::kAmx && std::fabs(want) < 0x1p-126f) {
              EXPECT_EQ(got, 0.0f) << n;  // AMX tiles have no subnormals
            } else if (std::isfinite(want)) {
              EXPECT_EQ(got, want) << n << " code " << code << " k " << k;
            } else {  // a NaN scale, or 4 * 2^127 times the adjacent zeros
              EXPECT_FALSE(std::isfinite(got)) << n;
            }
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
