#include "ops/linear/wgmma/wgmma_linear.h"

#include <cmath>
#include <limits>

#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/input_parts.h"
#include "support/quant_fixture.h"
#include "support/random.h"
#include "tensor/codec/bf16.h"

namespace dsv4::test {
namespace {

std::vector<QuantCase> WgmmaCases() {
  std::vector<QuantCase> cases = AllQuantCases();
  std::erase_if(cases, [](const QuantCase& c) { return c.format == WeightFormat::kF32; });
  return cases;
}

bool HalfInputs(WeightFormat f) { return f == WeightFormat::kNvfp4 || f == WeightFormat::kFp8Block; }

struct Product {
  std::vector<float> want;
  std::vector<double> bound;
};

// The product of exact weights with activations of one or two FP16 (NVFP4, FP8) or BF16 terms, and the error bound of
// float32 sums. A tensor core adds the 16 products of a step to the running sum, with all addends truncated at the
// largest one's last bit or a few bits below it. That is at most 17 * 2^-23 of the sum of magnitudes per step, far less
// on average. FP8 with odd scales adds two roundings per 128 columns. 2^-23 (K / 16 + 8) of the sum of magnitudes holds
// with a large margin.
Product Reference(const LinearArgs& a, const std::vector<double>& w, int numbers) {
  const WeightFormat format = a.parts.only().w.format;
  const int64_t tokens = a.x.dim(0), rows = a.parts.only().w.rows, k = a.parts.only().w.cols, n = rows / a.groups;
  Product p;
  std::vector<double> x(static_cast<size_t>(a.x.num_elements()));
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = InParts(a.x.f32()[i], format == WeightFormat::kBf16 ? 2 : numbers, HalfInputs(format));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t r = 0; r < rows; ++r) {
      const double* xs = x.data() + (t * a.groups + r / n) * k;
      const double* ws = w.data() + r * k;
      double sum = 0, magnitude = 0;
      for (int64_t i = 0; i < k; ++i) {
        sum += xs[i] * ws[i];
        magnitude += std::fabs(xs[i] * ws[i]);
      }
      p.want.push_back(static_cast<float>(sum));
      p.bound.push_back((static_cast<double>(k) / 16 + 8) * 0x1p-23 * magnitude + std::fabs(sum) * 0x1p-22);
    }
  }
  return p;
}

// In the regime whose inputs have this number of terms.
std::vector<float> OnGpu(const LinearArgs& a, int numbers) {
  const QuantTensor& w = a.parts.only().w;
  GuardBuffer<float> y({a.x.dim(0), w.rows});
  Mirror gpu;
  gpu.ctx().regime = numbers == 2 ? Regime::kPrompt : Regime::kLongPrompt;
  const LinearArgs device{.x = gpu.In(a.x), .parts = {{gpu.Weight(w), gpu.Out(y.tensor())}}, .groups = a.groups};
  if (!gpu.ctx().gpu.IsHopper()) return {};
  WgmmaLinear(gpu.ctx(), device);
  gpu.Finish();
  return {y.span().begin(), y.span().end()};
}

struct WgmmaSizes {
  int64_t tokens, groups, n, k;
};

void Check(Random& random, QuantCase kind, WgmmaSizes s, QuantOptions options = {}) {
  const int64_t granule = ColumnGranule(kind.format);
  s.k = CeilDiv(s.k, granule) * granule;
  QuantFixture w(random, kind, s.groups * s.n, s.k, options);
  GuardBuffer<float> x({s.tokens, s.groups * s.k}, random.Normals(s.tokens * s.groups * s.k));
  const LinearArgs a{.x = x.tensor(), .parts = {{w.tensor(), {}}}, .groups = s.groups};
  const std::vector<double> weights = w.Decoded();
  for (const int numbers : {1, 2}) {
    const std::vector<float> got = OnGpu(a, numbers);
    if (got.empty()) GTEST_SKIP() << "not a Hopper GPU";
    const Product p = Reference(a, weights, numbers);
    EXPECT_TRUE(WithinBounds(got, p.want, p.bound)) << kind.name() << " T " << s.tokens << " G " << s.groups << " N "
                                                    << s.n << " K " << s.k << " numbers " << numbers;
  }
}

TEST(CudaLinearWgmma, OneTile) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const QuantCase& kind : WgmmaCases()) Check(random, kind, {8, 1, 16, 64});
}

TEST(CudaLinearWgmma, MatchesExactProduct) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  for (const QuantCase& kind : WgmmaCases()) {
    for (const WgmmaSizes& s : {WgmmaSizes{1, 1, 1, 1},
                                {65, 1, 64, 64},
                                {67, 1, 128, 128},
                                {100, 1, 130, 192},
                                {257, 1, 48, 448},
                                {300, 1, 257, 97},
                                {96, 1, 129, 1040},
                                {64, 1, 40, 4096}}) {
      Check(random, kind, s);
    }
  }
}

TEST(CudaLinearWgmma, Groups) {
  DSV4_GPU_OR_SKIP();
  Random random(3);
  for (const QuantCase& kind : WgmmaCases()) {
    for (const WgmmaSizes& s : {WgmmaSizes{70, 2, 64, 128}, {129, 3, 144, 96}, {90, 4, 37, 70}}) Check(random, kind, s);
  }
}

TEST(CudaLinearWgmma, Fp8ScaleGridWithOffset) {
  DSV4_GPU_OR_SKIP();
  Random random(4);
  for (const DType scale : {DType::kF8E8M0, DType::kF32}) {
    Check(random, {WeightFormat::kFp8Block, scale}, {80, 1, 200, 520}, {.scale_row_offset = 48});
  }
}

// More tiles than the GPU has multiprocessors: the ring continues from tile to tile, and the product's own blocks
// convert the last token tile.
TEST(CudaLinearWgmma, ManyTilesPerBlock) {
  DSV4_GPU_OR_SKIP();
  Random random(5);
  for (const QuantCase& kind : WgmmaCases()) Check(random, kind, {520, 1, 128 * 72 + 5, 96});
}

// Every weight code and every block scale once, exactly: x picks one column.
TEST(CudaLinearWgmma, EveryCodeDecodesExactly) {
  DSV4_GPU_OR_SKIP();
  for (const WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kMxfp4}) {
    const bool nvfp4 = format == WeightFormat::kNvfp4;
    const int64_t block = nvfp4 ? 16 : 32, n = 253;  // a row per scale, except NaN (127) and scales that overflow
    std::vector<uint8_t> codes(static_cast<size_t>(n * block / 2)), scales(static_cast<size_t>(n));
    for (int64_t i = 0; i < n * block / 2; ++i) {
      codes[static_cast<size_t>(i)] = static_cast<uint8_t>(i % 8 * 2 | (i % 8 * 2 + 1) << 4);
    }
    for (int64_t i = 0; i < n; ++i) {
      scales[static_cast<size_t>(i)] = static_cast<uint8_t>(nvfp4 && i >= 127 ? i + 1 : i);
    }
    const QuantTensor w{
        .format = format, .rows = n, .cols = block, .codes = codes.data(), .block_scale = scales.data()};
    GuardBuffer<float> x({65, block});
    for (float& v : x.span()) v = 0;
    for (int64_t t = 0; t < block; ++t) x.span()[static_cast<size_t>(t * block + t)] = 1;
    const std::vector<float> got = OnGpu({.x = x.tensor(), .parts = {{w, {}}}}, 1);
    if (got.empty()) GTEST_SKIP() << "not a Hopper GPU";
    for (int64_t t = 0; t < block; ++t) {
      for (int64_t r = 0; r < n; ++r) {
        const double want = WeightValue(w, r, t);
        const float float_want = static_cast<float>(want);
        if (!std::isfinite(float_want) || (want != 0 && std::fabs(want) < 0x1p-126)) continue;
        ASSERT_EQ(got[static_cast<size_t>(t * n + r)], float_want) << NameOf(format) << " row " << r << " column " << t;
      }
    }
  }
}

TEST(CudaLinearWgmma, SameBitsTwiceAndAtEveryTokenCount) {
  DSV4_GPU_OR_SKIP();
  Random random(6);
  for (const QuantCase& kind : WgmmaCases()) {
    for (const int numbers : {1, 2}) {
      const int64_t n = 300, k = 1024;
      QuantFixture w(random, kind, n, k);
      GuardBuffer<float> x({1100, k}, random.Normals(1100 * k));
      const std::vector<float> all = OnGpu({.x = x.tensor(), .parts = {{w.tensor(), {}}}}, numbers);
      if (all.empty()) GTEST_SKIP() << "not a Hopper GPU";
      EXPECT_TRUE(BitEqual(OnGpu({.x = x.tensor(), .parts = {{w.tensor(), {}}}}, numbers), all));
      for (const int64_t tokens : {1, 65, 190, 513}) {
        const std::vector<float> head = OnGpu({.x = x.tensor().Head(tokens), .parts = {{w.tensor(), {}}}}, numbers);
        EXPECT_TRUE(BitEqual(head, std::span(all).first(static_cast<size_t>(tokens * n))))
            << kind.name() << " " << tokens << " " << numbers;
      }
    }
  }
}

// A NaN stays in its own token.
TEST(CudaLinearWgmma, TokensDoNotMix) {
  DSV4_GPU_OR_SKIP();
  Random random(7);
  for (const QuantCase& kind : WgmmaCases()) {
    QuantFixture w(random, kind, 64, 128);
    GuardBuffer<float> x({70, 128}, random.Normals(70 * 128));
    for (const int numbers : {1, 2}) {
      x.span()[69 * 128 + 3] = 1;
      const std::vector<float> clean = OnGpu({.x = x.tensor(), .parts = {{w.tensor(), {}}}}, numbers);
      if (clean.empty()) GTEST_SKIP() << "not a Hopper GPU";
      for (const float special :
           {std::nanf(""), std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max()}) {
        x.span()[69 * 128 + 3] = special;
        const std::vector<float> got = OnGpu({.x = x.tensor(), .parts = {{w.tensor(), {}}}}, numbers);
        EXPECT_TRUE(BitEqual(std::span(got).first(69 * 64), std::span(clean).first(69 * 64))) << kind.name();
        if (HalfInputs(kind.format) && !std::isnan(special)) {  // saturates
          x.span()[69 * 128 + 3] = static_cast<float>(InParts(special, 1, true));
          const std::vector<float> most = OnGpu({.x = x.tensor(), .parts = {{w.tensor(), {}}}}, 1);
          EXPECT_TRUE(numbers == 2 || BitEqual(got, most)) << kind.name() << " " << special;
        } else {
          EXPECT_FALSE(std::isfinite(got.back())) << kind.name() << " " << special;
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
