// linear with inputs rounded to integers of one, two or three bytes (ops/linear/integer/integer_rows.h).
#include <cmath>
#include <limits>

#include "ops/kernels.h"
#include "ops/linear/linear.h"
#include "ops/linear_split.h"
#include "support/compare.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"
#include "tensor/codec/activation.h"

DSV4_DECLARE_PRODUCT_KERNELS(LinearCpu, LinearArgs)

namespace dsv4::test {
namespace {

const std::vector<Kernel<LinearArgs>> kIntegerKernels = DSV4_PRODUCT_KERNELS(LinearCpu);

struct Mode {
  QuantCase kind;
  ActivationDtype activation;

  int bytes() const { return IntegerBytes(activation); }
};

class LinearIntegers : public ::testing::TestWithParam<Mode> {
 protected:
  int64_t granule() const { return ColumnGranule(GetParam().kind.format); }
  const QuantCase& kind() const { return GetParam().kind; }
  ActivationDtype activation() const { return GetParam().activation; }
};
INSTANTIATE_TEST_SUITE_P(Modes, LinearIntegers,
                         ::testing::Values(Mode{{WeightFormat::kMxfp4}, ActivationDtype::kInt8},
                                           Mode{{WeightFormat::kNvfp4}, ActivationDtype::kInt8},
                                           Mode{{WeightFormat::kMxfp4}, ActivationDtype::kInt16},
                                           Mode{{WeightFormat::kNvfp4}, ActivationDtype::kInt16},
                                           Mode{{WeightFormat::kMxfp4}, ActivationDtype::kInt24},
                                           Mode{{WeightFormat::kNvfp4}, ActivationDtype::kInt24}),
                         [](const auto& test) {
                           return StrCat(test.param.kind.name(), "_", test.param.bytes(), "_bytes");
                         });

struct IntegerExpected {
  std::vector<double> y, bound;
};

// The sums within blocks are exact. A block's sum goes through the product of two scales, a product and an addition for
// each 128 columns, 4 additions of lanes and the global scale. The number n of roundings is two for each 128 columns
// (the generic kernel), the last three, one for an integer of three bytes as float32 and one for the reference's
// product q * scale.
IntegerExpected ExactIntegers(const Mode& mode, const std::vector<float>& x, const QuantFixture& w, int64_t num_tokens,
                              int64_t groups) {
  const int64_t k_dim = w.tensor().cols, rows = w.tensor().rows, per_group = rows / groups;
  const std::vector<double> weights = w.Decoded();
  std::vector<double> rounded;
  for (int64_t i = 0; i < num_tokens * groups * k_dim; i += k_dim) {
    for (int64_t b = 0; b < k_dim; b += kIntegerBlockSize) {
      int32_t q[kIntegerBlockSize];
      const int64_t n = std::min(kIntegerBlockSize, k_dim - b);
      const double scale = QuantiseToIntegers(x.data() + i + b, n, mode.bytes(), q);
      for (int64_t k = 0; k < n; ++k) rounded.push_back(q[k] * scale);
    }
  }
  IntegerExpected e;
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t n = 0; n < rows; ++n) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < k_dim; ++k) {
        const double product = rounded[static_cast<size_t>((t * groups + n / per_group) * k_dim + k)] *
                               weights[static_cast<size_t>(n * k_dim + k)];
        sum += product;
        magnitude += std::fabs(product);
      }
      e.y.push_back(sum);
      e.bound.push_back(Gamma(2 * CeilDiv(k_dim, 128) + 9) * magnitude);
    }
  }
  return e;
}

TEST_P(LinearIntegers, MatchesExactProductsOfRoundedInputs) {
  struct Case {
    int64_t t, n, k, groups;
  };
  Random random(1);
  for (const Case c : {Case{1, 1, 1, 1},
                       {1, 5, 32, 1},
                       {2, 3, 96, 1},
                       {3, 24, 128, 1},
                       {4, 33, 144, 1},
                       {5, 130, 256, 1},
                       {6, 9, 400, 1},
                       {7, 6, 1040, 1},
                       {8, 17, 528, 1},
                       {9, 5, 272, 1},
                       {67, 19, 264, 1},
                       {200, 3, 48, 1},
                       {1, 120, 80, 3},
                       {9, 60, 176, 4},
                       {1, 24, 4096, 1}}) {
    const int64_t k = CeilDiv(c.k, granule()) * granule();
    SCOPED_TRACE(StrCat("T ", c.t, " N ", c.n, " K ", k, " G ", c.groups));
    const QuantFixture w(random, kind(), c.n, k);
    GuardBuffer<float> x({c.t, c.groups * k}, random.Normals(c.t * c.groups * k));
    const IntegerExpected expected = ExactIntegers(GetParam(), x.values(), w, c.t, c.groups);
    const LinearArgs args{.x = x.tensor(), .parts = {{w.tensor(), {}}}, .groups = c.groups, .activation = activation()};
    const auto check = [&](const auto run, const ExecContext& ctx) {
      GuardBuffer<float> y({c.t, c.n});
      LinearArgs a = args;
      a.parts[0].y = y.tensor();
      run(ctx, a);
      EXPECT_TRUE(WithinBounds(y.span(), expected.y, expected.bound));
    };
    ForEachKernel(kIntegerKernels, [&](const auto run) { check(run, TwoThreads()); });
    check(Linear, Reference());
  }
}

// Inputs of -127 .. 127 (or 32639) in blocks whose scale is 1 (of three bytes: 2^-8), weights with scales of 1, and
// sums below 2^24: nothing is rounded anywhere, so every instruction set must give the integers themselves. The first
// rows and tokens are the extremes: every product +-12 * 127 (32639).
TEST_P(LinearIntegers, EveryInstructionSetAddsTheSameIntegers) {
  Random random(2);
  const int64_t num_tokens = 9, rows = 13, k_dim = activation() == ActivationDtype::kInt8 ? 256 + granule() : 64;
  const int most = LargestInteger(std::min(GetParam().bytes(), 2));
  std::vector<uint8_t> codes(static_cast<size_t>(rows * k_dim / 2)), scales(codes.size());
  for (uint8_t& c : codes) c = static_cast<uint8_t>(random.Bits());
  for (int64_t i = 0; i < k_dim / 2; ++i) {
    codes[static_cast<size_t>(i)] = 0x77;
    codes[static_cast<size_t>(k_dim / 2 + i)] = 0xFF;
  }
  std::fill(scales.begin(), scales.end(), kind().format == WeightFormat::kNvfp4 ? uint8_t{0x38} : uint8_t{127});
  const QuantTensor w{
      .format = kind().format, .rows = rows, .cols = k_dim, .codes = codes.data(), .block_scale = scales.data()};
  std::vector<float> x;
  for (int64_t i = 0; i < num_tokens * k_dim; ++i) {
    const int64_t t = i / k_dim, k = i % k_dim;
    const int64_t value = t == 0 || k % 16 == 0 ? most : t == 1 ? -most : random.Index(2 * most + 1) - most;
    x.push_back(static_cast<float>(value));
  }
  GuardBuffer<float> input({num_tokens, k_dim}, x);
  std::vector<float> want;
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t n = 0; n < rows; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < k_dim; ++k) sum += x[static_cast<size_t>(t * k_dim + k)] * WeightValue(w, n, k);
      want.push_back(static_cast<float>(sum));
    }
  }
  ForEachKernel(kIntegerKernels, [&](const auto run) {
    for (const int64_t t : {int64_t{1}, num_tokens}) {
      GuardBuffer<float> y({t, rows});
      run({}, {.x = input.tensor().Head(t), .parts = {{w, y.tensor()}}, .activation = activation()});
      EXPECT_TRUE(BitEqual(y.span(), std::span(want).first(static_cast<size_t>(t * rows))));
    }
  });
}

TEST_P(LinearIntegers, RowsDoNotDependOnTheirBatch) {
  Random random(3);
  const int64_t num_tokens = 67, n = 37;
  for (const int64_t k : {CeilDiv(int64_t{300}, granule()) * granule(), CeilDiv(int64_t{61}, granule()) * granule()}) {
    const QuantFixture w(random, kind(), n, k);
    GuardBuffer<float> x({num_tokens, k}, random.Normals(num_tokens * k));
    ForEachKernel(kIntegerKernels, [&](const auto run) {
      GuardBuffer<float> all({num_tokens, n});
      run({}, {.x = x.tensor(), .parts = {{w.tensor(), all.tensor()}}, .activation = activation()});
      for (const ExecContext& ctx : ThreadCounts()) {
        for (const int64_t size : {1, 2, 3, 4, 5, 6, 7, 8, 9, 66, 67}) {
          for (const int64_t first : {int64_t{0}, num_tokens - size}) {
            GuardBuffer<float> y({size, n});
            run(ctx, {.x = {x.data() + first * k, DType::kF32, {size, k}},
                      .parts = {{w.tensor(), y.tensor()}},
                      .activation = activation()});
            EXPECT_TRUE(
                BitEqual(y.span(), all.span().subspan(static_cast<size_t>(first * n), static_cast<size_t>(size * n))));
          }
        }
      }
    });
  }
}

TEST_P(LinearIntegers, ManyTokensAndFewRowsSplitByToken) {
  ExpectSplitByTokenKeepsBits(kIntegerKernels, kind(), activation(), 4);
}

TEST_P(LinearIntegers, InfinityAndNanStayInTheirRow) {
  Random random(5);
  const int64_t num_tokens = 9, n = 10, k = 3 * granule();
  const QuantFixture w(random, kind(), n, k);
  GuardBuffer<float> x({num_tokens, k}, random.Normals(num_tokens * k));
  x[3 * k + k - 1] = std::numeric_limits<float>::quiet_NaN();
  x[5 * k] = -std::numeric_limits<float>::infinity();
  std::fill_n(x.data() + 7 * k, k, 0.0f);
  std::fill_n(x.data() + 8 * k, k, 0x1p-101f);
  ForEachKernel(kIntegerKernels, [&](const auto run) {
    GuardBuffer<float> y({num_tokens, n});
    run({}, {.x = x.tensor(), .parts = {{w.tensor(), y.tensor()}}, .activation = activation()});
    for (int64_t t = 0; t < num_tokens; ++t) {
      for (const float v : y.row(t)) {
        EXPECT_EQ(std::isnan(v), t == 3 || t == 5) << t;
        EXPECT_TRUE(t < 7 || v == 0.0f) << t;
      }
    }
  });
}

TEST_P(LinearIntegers, EveryCodeAndScaleDecodesExactly) {
  const WeightFormat format = kind().format;
  const int64_t block = granule();
  std::vector<uint8_t> codes(static_cast<size_t>(256 * block / 2)), scales(256);
  for (size_t n = 0; n < 256; ++n) scales[n] = static_cast<uint8_t>(n);
  for (int64_t code = 0; code < 16; ++code) {
    std::fill(codes.begin(), codes.end(), static_cast<uint8_t>(code | (code << 4)));
    const QuantTensor w{
        .format = format, .rows = 256, .cols = block, .codes = codes.data(), .block_scale = scales.data()};
    for (const int64_t k : {int64_t{0}, block - 1}) {
      std::vector<float> one(static_cast<size_t>(block));
      const int most = LargestInteger(std::min(GetParam().bytes(), 2));
      one[static_cast<size_t>(k)] = static_cast<float>(most);  // the block's scale is 1
      GuardBuffer<float> x({1, block}, one);
      ForEachKernel(kIntegerKernels, [&](const auto run) {
        GuardBuffer<float> y({1, 256});
        run({}, {.x = x.tensor(), .parts = {{w, y.tensor()}}, .activation = activation()});
        for (int64_t n = 0; n < 256; ++n) {
          const double want = most * WeightValue(w, n, k);
          if (std::isnan(want)) {
            EXPECT_TRUE(std::isnan(y[n])) << n;
          } else if (std::fabs(want) < 0x1p126) {
            EXPECT_EQ(y[n], static_cast<float>(want)) << n << " code " << code;
          } else {  // twice the weight may be infinite before it is halved
            EXPECT_GE(std::fabs(y[n]), 0x1p126) << n;
          }
        }
      });
    }
  }
}

// The modes only change the inputs of E2M1 weights.
TEST(LinearIntegers, OtherWeightsTakeTheirInputsAsTheyAre) {
  Random random(6);
  for (const ActivationDtype activation : {ActivationDtype::kInt8, ActivationDtype::kInt16, ActivationDtype::kInt24}) {
    for (const QuantCase& kind : AllQuantCases()) {
      if (RoundsToIntegers(activation, kind.format)) continue;
      const QuantFixture w(random, kind, 20, 130);
      GuardBuffer<float> x({3, 130}, random.Normals(3 * 130)), y({3, 20}), want({3, 20});
      Linear({}, {.x = x.tensor(), .parts = {{w.tensor(), y.tensor()}}, .activation = activation});
      Linear({}, {.x = x.tensor(), .parts = {{w.tensor(), want.tensor()}}});
      EXPECT_TRUE(BitEqual(y.span(), want.span())) << kind.name();
    }
  }
}

}  // namespace
}  // namespace dsv4::test
