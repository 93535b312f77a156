// Shapes that a GPU's kernels take in ways of their own; what every device must do stands in tests/ops/linear_test.cc.
#include "ops/linear/linear.h"

#include <cmath>

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

// What the kernels compute, in double: x as two BF16 numbers (`f32_inputs`: as it is) times the exact weights. Products
// of BF16 numbers are exact in float32; a tensor core adds 16 of them and the accumulator with at worst one truncation
// (2^-23 relative to the largest term) each, so K/16 steps, the partial sums (at most 128 + 8) and the factors stay
// within
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
        const double product = (rounds ? InParts(in, 2) : static_cast<double>(in)) *
                               weights[static_cast<size_t>(n * k_dim + k)];
        sum += product;
        magnitude += std::fabs(product);
      }
      e.y.push_back(sum);
      e.bound.push_back(2 * Gamma(17 * CeilDiv(k_dim, 16) + 140) * magnitude + 0x1p-126);
    }
  }
  return e;
}

std::vector<float> RunLinear(const QuantTensor& w, const Tensor& x, int64_t num_tokens, int64_t groups,
                             bool f32_inputs = false, Regime regime = Regime::kDecode) {
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

// A square of true size: every multiprocessor has work, clusters of eight, several rounds.
TEST(CudaLinear, TrueShapes) {
  DSV4_GPU_OR_SKIP();
  Random random(5);
  for (const auto& [n, k, groups] :
       {std::tuple{int64_t{2048}, int64_t{4096}, int64_t{1}}, {4096, 2048, 1}, {4096, 1024, 4}, {256, 8192, 1}}) {
    for (const WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kFp8Block}) {
      SCOPED_TRACE(StrCat("N ", n, " K ", k, " G ", groups));
      const QuantFixture w(random, {format}, n, k, {.unaligned = false});
      const int64_t t = 2;
      GuardBuffer<float> x({t, groups * k}, random.Normals(t * groups * k));
      const Expected expected = Exact(x.values(), w, t, groups, true);
      const std::vector<float> y = RunLinear(w.tensor(), x.tensor(), t, groups);
      EXPECT_TRUE(WithinBounds(y, expected.y, expected.bound));
      EXPECT_TRUE(BitEqual(RunLinear(w.tensor(), {x.data(), DType::kF32, {1, groups * k}}, 1, groups),
                           std::span(y).first(static_cast<size_t>(n))));
    }
  }
}

// Rings and inputs of 17 tokens are together what a block may have on Hopper, without what the kernel declares itself:
// then the rings must be shorter.
TEST(CudaLinear, InputsThatFillSharedMemory) {
  DSV4_GPU_OR_SKIP();
  Random random(7);
  const int64_t n = 16 * 8 * 132, k = 1792, t = 17;
  const QuantFixture w(random, {WeightFormat::kNvfp4}, n, k, {.unaligned = false});
  GuardBuffer<float> x({t, k}, random.Normals(t * k));
  const std::vector<float> all = RunLinear(w.tensor(), x.tensor(), t, 1);
  for (const auto& [first, size] : {std::pair<int64_t, int64_t>{0, 16}, {16, 1}}) {
    const Tensor part{x.data() + first * k, DType::kF32, {size, k}};
    EXPECT_TRUE(BitEqual(RunLinear(w.tensor(), part, size, 1),
                         std::span(all).subspan(static_cast<size_t>(first * n), static_cast<size_t>(size * n))))
        << first;
  }
}

}  // namespace
}  // namespace dsv4::test
