#include "ops/linears/linears.h"

#include <cmath>

#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/input_parts.h"
#include "support/quant_fixture.h"

namespace dsv4 {
void LinearsCuda(const ExecContext& ctx, const LinearsArgs& args);
}

namespace dsv4::test {
namespace {

constexpr float kEps = 1e-6f;

std::vector<std::vector<float>> RunLinears(const std::vector<QuantFixture>& weights, const Tensor& x, bool batch_invariant = false,
                                           const Tensor& norm = {}) {
  std::vector<std::unique_ptr<GuardBuffer<float>>> y;
  Mirror gpu;
  gpu.ctx().batch_invariant = batch_invariant;
  LinearsArgs args{.x = gpu.In(x), .count = static_cast<int>(weights.size()), .norm_eps = kEps};
  if (norm) args.norm = gpu.In(norm);
  for (size_t i = 0; i < weights.size(); ++i) {
    y.push_back(std::make_unique<GuardBuffer<float>>(Shape{x.dim(0), weights[i].tensor().rows}));
    args.parts[i] = {.w = gpu.Weight(weights[i].tensor()), .y = gpu.Out(y[i]->tensor())};
  }
  LinearsCuda(gpu.ctx(), args);
  gpu.Finish();
  std::vector<std::vector<float>> values;
  for (const auto& part : y) values.push_back(part->values());
  return values;
}

struct Case {
  int64_t k;
  std::vector<int64_t> rows;
  std::vector<QuantCase> kinds;
};

std::vector<Case> Cases() {
  const QuantCase n{WeightFormat::kNvfp4}, f{WeightFormat::kFp8Block, DType::kF32}, b{WeightFormat::kBf16}, m{WeightFormat::kMxfp4}, w{WeightFormat::kF32};
  return {{64, {5, 16, 33}, {n, n, n}},
          {192, {7, 40, 16, 1, 90, 12, 3, 31}, {n, f, b, m, w, n, b, f}},
          {1024, {2048, 100}, {n, n}},
          {4096, {256, 96, 160, 64, 16}, {f, f, b, b, n}},
          {7168, {128, 512}, {b, n}}};
}

// Bounds as in linear_test.cc.
TEST(CudaLinears, MatchesExactProducts) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const Case& c : Cases()) {
    std::vector<QuantFixture> weights;
    for (size_t i = 0; i < c.rows.size(); ++i) weights.emplace_back(random, c.kinds[i], c.rows[i], c.k, QuantOptions{.unaligned = false});
    for (const int64_t t : {1, 2, 8, 20, 40}) {
      GuardBuffer<float> x({t, c.k}, random.Normals(t * c.k));
      const auto y = RunLinears(weights, x.tensor());
      for (size_t i = 0; i < weights.size(); ++i) {
        const std::vector<double> w = weights[i].Decoded();
        std::vector<double> want, bound;
        for (int64_t token = 0; token < t; ++token) {
          for (int64_t n = 0; n < c.rows[i]; ++n) {
            double sum = 0, magnitude = 0;
            for (int64_t k = 0; k < c.k; ++k) {
              const float in = x[token * c.k + k];
              const double product = (c.kinds[i].format == WeightFormat::kF32 ? static_cast<double>(in) : InParts(in, 2)) * w[static_cast<size_t>(n * c.k + k)];
              sum += product;
              magnitude += std::fabs(product);
            }
            want.push_back(sum);
            bound.push_back(2 * Gamma(17 * CeilDiv(c.k, 16) + 140) * magnitude + 0x1p-126);
          }
        }
        EXPECT_TRUE(WithinBounds(y[i], want, bound)) << "K " << c.k << " T " << t << " part " << i;
      }
      EXPECT_EQ(RunLinears(weights, x.tensor()), y) << "two runs";
    }
  }
}

// With a norm every input is off by at most the rounding of its two parts (2^-17) and of its row's scale: a sum of K squares
// made of 32 chains, a root and three products.
TEST(CudaLinears, NormsRowsFirst) {
  DSV4_GPU_OR_SKIP();
  Random random(3);
  for (const Case& c : Cases()) {
    std::vector<QuantFixture> weights;
    for (size_t i = 0; i < c.rows.size(); ++i) {
      if (c.kinds[i].format != WeightFormat::kF32) weights.emplace_back(random, c.kinds[i], c.rows[i], c.k, QuantOptions{.unaligned = false});
    }
    GuardBuffer<float> norm({c.k}, random.Normals(c.k));
    for (const int64_t t : {1, 2, 8, 40}) {
      GuardBuffer<float> x({t, c.k}, random.Normals(t * c.k));
      const auto y = RunLinears(weights, x.tensor(), false, norm.tensor());
      for (size_t i = 0; i < weights.size(); ++i) {
        const std::vector<double> w = weights[i].Decoded();
        const int64_t rows = weights[i].tensor().rows;
        std::vector<double> want, bound;
        for (int64_t token = 0; token < t; ++token) {
          double square = 0;
          for (int64_t k = 0; k < c.k; ++k) square += static_cast<double>(x[token * c.k + k]) * x[token * c.k + k];
          const double scale = 1 / std::sqrt(square / static_cast<double>(c.k) + kEps);
          for (int64_t n = 0; n < rows; ++n) {
            double sum = 0, magnitude = 0;
            for (int64_t k = 0; k < c.k; ++k) {
              const double product = x[token * c.k + k] * scale * norm[k] * w[static_cast<size_t>(n * c.k + k)];
              sum += product;
              magnitude += std::fabs(product);
            }
            want.push_back(sum);
            bound.push_back((2 * Gamma(17 * CeilDiv(c.k, 16) + 140) + 0x1p-17 + Gamma(c.k / 32 + 20)) * magnitude + 0x1p-126);
          }
        }
        EXPECT_TRUE(WithinBounds(y[i], want, bound)) << "K " << c.k << " T " << t << " part " << i;
      }
      EXPECT_EQ(RunLinears(weights, x.tensor(), false, norm.tensor()), y) << "two runs";
    }
  }
}

TEST(CudaLinears, RowsDoNotDependOnTheirBatch) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  std::vector<Case> cases = Cases();
  cases.push_back({512, {40960}, {QuantCase{WeightFormat::kNvfp4}}});  // so many rows that no warp shares one
  for (int i = 0; i < 2 * static_cast<int>(cases.size()); ++i) {
    const Case& c = cases[static_cast<size_t>(i / 2)];
    GuardBuffer<float> norm_weights({c.k}, random.Normals(c.k));
    const Tensor norm = i % 2 == 0 ? Tensor{} : norm_weights.tensor();
    std::vector<QuantFixture> weights;
    for (size_t j = 0; j < c.rows.size(); ++j) {
      if (norm && c.kinds[j].format == WeightFormat::kF32) continue;
      weights.emplace_back(random, c.kinds[j], c.rows[j], c.k, QuantOptions{.unaligned = false});
    }
    const int64_t num_tokens = 67;
    GuardBuffer<float> x({num_tokens, c.k}, random.Normals(num_tokens * c.k));
    const auto all = RunLinears(weights, x.tensor(), /*batch_invariant=*/true, norm);
    for (const int64_t size : {1, 3, 8, 9, 17, 64}) {
      const int64_t first = num_tokens - size;
      const auto y = RunLinears(weights, {x.data() + first * c.k, DType::kF32, {size, c.k}}, false, norm);
      for (size_t j = 0; j < weights.size(); ++j) {
        const int64_t rows = weights[j].tensor().rows;
        const std::span<const float> want(all[j].data() + first * rows, static_cast<size_t>(size * rows));
        EXPECT_TRUE(BitEqual(y[j], want)) << "K " << c.k << " T " << size << " part " << j << (norm ? " normed" : "");
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
