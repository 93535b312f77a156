#include "ops/linear/linear.h"

#include <cmath>
#include <numeric>
#include <span>

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

constexpr float kEps = 1e-6f;

std::vector<std::vector<float>> RunParts(const std::vector<QuantFixture>& weights, const Tensor& x,
                                         const Tensor& norm = {}, Regime regime = Regime::kDecode) {
  std::vector<std::unique_ptr<GuardBuffer<float>>> y;
  Mirror gpu;
  gpu.ctx().regime = regime;
  LinearArgs args{.x = gpu.In(x), .norm_eps = kEps};
  if (norm) args.norm = gpu.In(norm);
  for (size_t i = 0; i < weights.size(); ++i) {
    y.push_back(std::make_unique<GuardBuffer<float>>(Shape{x.dim(0), weights[i].tensor().rows}));
    args.parts.Add({.w = gpu.Weight(weights[i].tensor()), .y = gpu.Out(y[i]->tensor())});
  }
  LinearCuda(gpu.ctx(), args);
  gpu.Finish();
  std::vector<std::vector<float>> values;
  for (const auto& part : y) values.push_back(part->values());
  return values;
}

struct PartsCase {
  int64_t k;
  std::vector<int64_t> rows;
  std::vector<QuantCase> kinds;
};

std::vector<PartsCase> Cases() {
  const QuantCase n{WeightFormat::kNvfp4}, f{WeightFormat::kFp8Block, DType::kF32}, b{WeightFormat::kBf16},
      m{WeightFormat::kMxfp4}, w{WeightFormat::kF32};
  return {{64, {5, 16, 33}, {n, n, n}},
          {192, {7, 40, 16, 1, 90, 12, 3, 31}, {n, f, b, m, w, n, b, f}},
          {1024, {2048, 100}, {n, n}},
          {4096, {256, 96, 160, 64, 16}, {f, f, b, b, n}},
          {7168, {128, 512}, {b, n}}};
}

std::vector<QuantFixture> Weights(Random& random, const PartsCase& c, bool f32 = true) {
  std::vector<QuantFixture> weights;
  for (size_t i = 0; i < c.rows.size(); ++i) {
    if (f32 || c.kinds[i].format != WeightFormat::kF32)
      weights.emplace_back(random, c.kinds[i], c.rows[i], c.k, QuantOptions{.unaligned = false});
  }
  return weights;
}

// Bounds as in linear_test.cc.
void ExpectExactProducts(const std::vector<QuantFixture>& weights, const Tensor& x,
                         const std::vector<std::vector<float>>& y) {
  const int64_t t = x.dim(0), width = x.dim(1);
  for (size_t i = 0; i < weights.size(); ++i) {
    const std::vector<double> w = weights[i].Decoded();
    const bool f32 = weights[i].tensor().format == WeightFormat::kF32;
    std::vector<double> want, bound;
    for (int64_t token = 0; token < t; ++token) {
      for (int64_t n = 0; n < weights[i].tensor().rows; ++n) {
        double sum = 0, magnitude = 0;
        for (int64_t k = 0; k < width; ++k) {
          const float in = x.f32()[token * width + k];
          const double product = (f32 ? static_cast<double>(in) : InParts(in, 2)) *
                                 w[static_cast<size_t>(n * width + k)];
          sum += product;
          magnitude += std::fabs(product);
        }
        want.push_back(sum);
        bound.push_back(2 * Gamma(17 * CeilDiv(width, 16) + 140) * magnitude + 0x1p-126);
      }
    }
    EXPECT_TRUE(WithinBounds(y[i], want, bound)) << "K " << width << " T " << t << " part " << i;
  }
}

// With a norm every input is off by at most the rounding of its two terms (2^-17) and of its row's scale: a sum of K
// squares in 32 chains, a root and three products.
void ExpectNormedProducts(const std::vector<QuantFixture>& weights, const Tensor& x, const Tensor& norm,
                          const std::vector<std::vector<float>>& y) {
  const int64_t t = x.dim(0), width = x.dim(1);
  for (size_t i = 0; i < weights.size(); ++i) {
    const std::vector<double> w = weights[i].Decoded();
    std::vector<double> want, bound;
    for (int64_t token = 0; token < t; ++token) {
      const float* in = x.f32() + token * width;
      double square = 0;
      for (int64_t k = 0; k < width; ++k) square += static_cast<double>(in[k]) * in[k];
      const double scale = 1 / std::sqrt(square / static_cast<double>(width) + kEps);
      for (int64_t n = 0; n < weights[i].tensor().rows; ++n) {
        double sum = 0, magnitude = 0;
        for (int64_t k = 0; k < width; ++k) {
          const double product = in[k] * scale * norm.f32()[k] * w[static_cast<size_t>(n * width + k)];
          sum += product;
          magnitude += std::fabs(product);
        }
        want.push_back(sum);
        bound.push_back((2 * Gamma(17 * CeilDiv(width, 16) + 140) + 0x1p-17 + Gamma(width / 32 + 20)) * magnitude +
                        0x1p-126);
      }
    }
    EXPECT_TRUE(WithinBounds(y[i], want, bound)) << "K " << width << " T " << t << " part " << i;
  }
}

TEST(CudaLinearParts, MatchesExactProducts) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const PartsCase& c : Cases()) {
    const std::vector<QuantFixture> weights = Weights(random, c);
    for (const int64_t t : {1, 2, 8, 20, 40}) {
      GuardBuffer<float> x({t, c.k}, random.Normals(t * c.k));
      const auto y = RunParts(weights, x.tensor());
      ExpectExactProducts(weights, x.tensor(), y);
      EXPECT_EQ(RunParts(weights, x.tensor()), y) << "two runs";
    }
  }
}

TEST(CudaLinearParts, NormsRowsFirst) {
  DSV4_GPU_OR_SKIP();
  Random random(3);
  for (const PartsCase& c : Cases()) {
    const std::vector<QuantFixture> weights = Weights(random, c, /*f32=*/false);
    GuardBuffer<float> norm({c.k}, random.Normals(c.k));
    for (const int64_t t : {1, 2, 8, 40}) {
      GuardBuffer<float> x({t, c.k}, random.Normals(t * c.k));
      const auto y = RunParts(weights, x.tensor(), norm.tensor());
      ExpectNormedProducts(weights, x.tensor(), norm.tensor(), y);
      EXPECT_EQ(RunParts(weights, x.tensor(), norm.tensor()), y) << "two runs";
    }
  }
}

// Tests that are fast under compute-sanitizer have names with Short: little work, each branch of a kernel once.

const QuantCase kOneTokenKinds[] = {
    {WeightFormat::kNvfp4}, {WeightFormat::kMxfp4}, {WeightFormat::kFp8Block, DType::kF32}, {WeightFormat::kBf16}};

// One token, K divided into segments, of whole and incomplete chunks; blocks with items of two matrices.
TEST(CudaLinearParts, OneTokenSegmentsShort) {
  DSV4_GPU_OR_SKIP();
  Random random(4);
  for (const QuantCase& kind : kOneTokenKinds) {
    for (const int64_t k : {192, 2048}) {
      const std::vector<QuantFixture> weights = Weights(random, {k, {40, 2120}, {kind, kind}});
      GuardBuffer<float> x({1, k}, random.Normals(k)), norm({k}, random.Normals(k));
      ExpectExactProducts(weights, x.tensor(), RunParts(weights, x.tensor()));
      ExpectNormedProducts(weights, x.tensor(), norm.tensor(), RunParts(weights, x.tensor(), norm.tensor()));
    }
  }
}

// One token, several formats together: a block has tiles of one format. Formats in any order, with one row or one tile
// next to many; as many formats as blocks; K that ends inside a tile, whole chunks, a single tile. The bits are the
// same as for a token among others.
TEST(CudaLinearParts, OneTokenFormatsShort) {
  DSV4_GPU_OR_SKIP();
  Random random(8);
  const auto& [n, m, f, b] = kOneTokenKinds;
  for (const PartsCase& c : {PartsCase{1056, {1, 2, 3, 4}, {n, b, m, f}},
                             {192, {7, 40, 16, 1, 90, 12, 3, 31}, {n, f, b, m, b, n, b, f}},
                             {1056, {2110, 1, 17}, {n, b, f}},
                             {2048, {1, 2100, 1, 40}, {n, b, m, f}},
                             {2048, {33, 1000, 500, 64}, {m, n, n, b}},
                             {80, {20, 20, 20}, {b, n, f}},
                             {32, {20, 20}, {b, m}}}) {
    const std::vector<QuantFixture> weights = Weights(random, c);
    GuardBuffer<float> x({2, c.k}, random.Normals(2 * c.k)), norm({c.k}, random.Normals(c.k));
    for (const Tensor& by : {Tensor{}, norm.tensor()}) {
      const auto both = RunParts(weights, x.tensor(), by);
      for (int64_t t = 0; t < 2; ++t) {
        const Tensor token{x.data() + t * c.k, DType::kF32, {1, c.k}};
        const auto y = RunParts(weights, token, by);
        if (t == 0) by ? ExpectNormedProducts(weights, token, by, y) : ExpectExactProducts(weights, token, y);
        for (size_t i = 0; i < y.size(); ++i) {
          const std::span<const float> want(both[i].data() + t * std::ssize(y[i]), y[i].size());
          EXPECT_TRUE(BitEqual(y[i], want)) << "K " << c.k << " part " << i << " token " << t << (by ? " normed" : "");
        }
      }
    }
  }
}

// Enough rows that no two warps share one; whole and incomplete chunks.
TEST(CudaLinearParts, OneTokenWholeRowsShort) {
  DSV4_GPU_OR_SKIP();
  Random random(5);
  for (const QuantCase& kind : kOneTokenKinds) {
    for (const int64_t k : {96, 256}) {
      const std::vector<QuantFixture> weights = Weights(random, {k, {17, 20000}, {kind, kind}});
      GuardBuffer<float> x({1, k}, random.Normals(k)), norm({k}, random.Normals(k));
      ExpectNormedProducts(weights, x.tensor(), norm.tensor(), RunParts(weights, x.tensor(), norm.tensor()));
    }
  }
}

// Shapes of a decode step: tokens have the same bits alone and among others.
TEST(CudaLinearParts, AFewTokensHaveTheBitsThatTheyHaveAlone) {
  DSV4_GPU_OR_SKIP();
  Random random(8);
  const auto& [n, m, f, b] = kOneTokenKinds;
  const PartsCase cases[] = {{4096, {3000, 64}, {n, b}}, {4096, {1536, 1024, 1024, 512, 512, 64}, {n, b, b, b, b, b}},
                             {8192, {4096}, {n}},        {8192, {2100}, {f}},
                             {8192, {300}, {b}},         {8192, {512, 64}, {m, n}},
                             {1024, {17000}, {n}},       {7168, {100, 64, 33, 40}, {n, b, m, f}},
                             {7168, {2300}, {n}},        {1056, {241, 500}, {b, m}},
                             {1280, {241, 500}, {f, n}}};
  for (const PartsCase& c : cases) {
    const std::vector<QuantFixture> weights = Weights(random, c);
    GuardBuffer<float> x({4, c.k}, random.Normals(4 * c.k)), norm({c.k}, random.Normals(c.k));
    for (const Tensor& by : {Tensor{}, norm.tensor()}) {
      for (const int64_t t : {2, 3, 4}) {
        const auto all = RunParts(weights, x.tensor().Head(t), by);
        for (int64_t i = 0; i < t; ++i) {
          const auto alone = RunParts(weights, {x.data() + i * c.k, DType::kF32, {1, c.k}}, by);
          for (size_t j = 0; j < weights.size(); ++j) {
            const std::span<const float> got(all[j].data() + i * c.rows[j], static_cast<size_t>(c.rows[j]));
            EXPECT_TRUE(BitEqual(got, alone[j]))
                << "K " << c.k << " T " << t << " token " << i << " part " << j << (by ? " normed" : "");
          }
        }
      }
    }
  }
}

// Many chunks per warp, so that slots are filled again, and many launches: a slot that is released too early causes
// occasional differences.
TEST(CudaLinearParts, OneTokenGivesTheSameBitsInEveryLaunch) {
  DSV4_GPU_OR_SKIP();
  Random random(7);
  constexpr int kLaunches = 100;
  std::vector<PartsCase> cases;
  for (const QuantCase& kind : kOneTokenKinds) {
    for (const auto& [k, rows] : {std::pair{int64_t{5120}, int64_t{241}}, {7168, 128}, {7168, 2100}, {512, 17000}})
      cases.push_back({k, {rows}, {kind}});
  }
  const auto& [n, m, f, b] = kOneTokenKinds;
  cases.insert(cases.end(),
               {{4096, {3000, 64}, {n, b}}, {7168, {100, 64, 33, 40}, {n, b, m, f}}, {5120, {200, 1500}, {f, b}}});
  for (const PartsCase& c : cases) {
    const std::vector<QuantFixture> weights = Weights(random, c);
    const int64_t rows = std::accumulate(c.rows.begin(), c.rows.end(), int64_t{0});
    GuardBuffer<float> x({1, c.k}, random.Normals(c.k)), y({kLaunches, rows});
    Mirror gpu;
    const Tensor out = gpu.Out(y.tensor());
    LinearArgs args{.x = gpu.In(x.tensor())};
    for (const QuantFixture& w : weights) args.parts.Add({.w = gpu.Weight(w.tensor()), .y = {}});
    auto* to = static_cast<float*>(out.data);
    for (int launch = 0; launch < kLaunches; ++launch) {
      for (size_t i = 0; i < weights.size(); to += c.rows[i++])
        args.parts[static_cast<int>(i)].y = {to, DType::kF32, {1, c.rows[i]}};
      LinearCuda(gpu.ctx(), args);
    }
    gpu.Finish();
    const auto first = y.row(0);
    if (rows < 1000) {
      std::vector<std::vector<float>> parts;
      auto from = first.begin();
      for (const int64_t count : c.rows) parts.emplace_back(from, from + count), from += count;
      ExpectExactProducts(weights, x.tensor(), parts);
    }
    for (int i = 1; i < kLaunches; ++i)
      ASSERT_TRUE(BitEqual(y.row(i), first)) << c.kinds[0].name() << " K " << c.k << " N " << rows << " launch " << i;
  }
}

// The kernel of more tokens, each width, formats together; a cluster divides K of 4,096.
TEST(CudaLinearParts, FewTokensShort) {
  DSV4_GPU_OR_SKIP();
  Random random(6);
  const QuantCase n{WeightFormat::kNvfp4}, f{WeightFormat::kFp8Block, DType::kF32}, b{WeightFormat::kBf16},
      m{WeightFormat::kMxfp4};
  for (const PartsCase& c :
       {PartsCase{192, {7, 40, 16, 20}, {n, f, b, m}}, {192, {40, 16}, {n, n}}, {4096, {33}, {n}}}) {
    const std::vector<QuantFixture> weights = Weights(random, c);
    GuardBuffer<float> norm({c.k}, random.Normals(c.k));
    for (const int64_t t : {2, 8, 16, 20}) {
      if (c.k == 4096 && t < 8) continue;
      GuardBuffer<float> x({t, c.k}, random.Normals(t * c.k));
      ExpectNormedProducts(weights, x.tensor(), norm.tensor(), RunParts(weights, x.tensor(), norm.tensor()));
    }
  }
}

TEST(CudaLinearParts, RowsDoNotDependOnTheirBatch) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  std::vector<PartsCase> cases = Cases();
  cases.push_back({512, {40960}, {QuantCase{WeightFormat::kNvfp4}}});  // enough rows that no two warps share one
  for (int i = 0; i < 2 * static_cast<int>(cases.size()); ++i) {
    const PartsCase& c = cases[static_cast<size_t>(i / 2)];
    GuardBuffer<float> norm_weights({c.k}, random.Normals(c.k));
    const Tensor norm = i % 2 == 0 ? Tensor{} : norm_weights.tensor();
    std::vector<QuantFixture> weights;
    for (size_t j = 0; j < c.rows.size(); ++j) {
      if (norm && c.kinds[j].format == WeightFormat::kF32) continue;
      weights.emplace_back(random, c.kinds[j], c.rows[j], c.k, QuantOptions{.unaligned = false});
    }
    const int64_t num_tokens = 67;
    GuardBuffer<float> x({num_tokens, c.k}, random.Normals(num_tokens * c.k));
    const auto all = RunParts(weights, x.tensor(), norm);
    for (const int64_t size : {1, 2, 3, 4, 8, 9, 17, 64}) {
      const int64_t first = num_tokens - size;
      const auto y = RunParts(weights, {x.data() + first * c.k, DType::kF32, {size, c.k}}, norm);
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
