// The mixes of mHC (ops/hc_pre/mix.h, and HcPre as a whole) against the paper's formulas in float64: the order of the
// parameters, Sinkhorn's first step, the epsilons.
#include "ops/hc_pre/mix.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "ops/hc_post/hc_post.h"
#include "ops/hc_pre/hc_pre.h"
#include "support/compare.h"
#include "support/contexts.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4 {
namespace {

using test::GuardBuffer;
using test::Near;
using test::Random;

constexpr double kEps = 1e-6;

using Matrix = std::vector<std::vector<double>>;  // [source][destination]

// docs/dev/model.md, step by step.
Matrix SinkhornDouble(Matrix c, int64_t iters) {
  const size_t h = c.size();
  for (auto& row : c) {
    double largest = row[0], sum = 0;
    for (const double v : row) largest = std::max(largest, v);
    for (double& v : row) sum += v = std::exp(v - largest);
    for (double& v : row) v = v / sum + kEps;
  }
  for (int64_t i = 0; i < iters; ++i) {
    for (size_t j = 0; i > 0 && j < h; ++j) {
      double sum = kEps;
      for (size_t k = 0; k < h; ++k) sum += c[j][k];
      for (size_t k = 0; k < h; ++k) c[j][k] /= sum;
    }
    for (size_t k = 0; k < h; ++k) {
      double sum = kEps;
      for (size_t j = 0; j < h; ++j) sum += c[j][k];
      for (size_t j = 0; j < h; ++j) c[j][k] /= sum;
    }
  }
  return c;
}

std::vector<double> Flat(const Matrix& m) {
  std::vector<double> flat;
  for (const auto& row : m) flat.insert(flat.end(), row.begin(), row.end());
  return flat;
}

Matrix Square(const std::vector<float>& x, size_t h) {
  Matrix m(h, std::vector<double>(h));
  for (size_t i = 0; i < h * h; ++i) m[i / h][i % h] = x[i];
  return m;
}

// Every step (a sum of h + 1 positive numbers, one division) adds at most h + 2 roundings; exp adds two units in the
// last place. Normalisation does not amplify relative errors of positive matrices by more than a factor of 2 a step.
double SinkhornBound(int64_t h, int64_t iters) { return 4 * test::Gamma((2 * iters + 1) * (h + 2) + 2); }

TEST(Sinkhorn, MatchesTheFormulaInFloat64) {
  Random random(1);
  for (const int64_t h : {1, 2, 4, 8}) {
    for (const int64_t iters : {1, 2, 3, 20}) {
      for (const float scale : {0.1f, 1.0f, 5.0f}) {
        std::vector<float> c = random.Normals(h * h, scale);
        const std::vector<double> want = Flat(SinkhornDouble(Square(c, static_cast<size_t>(h)), iters));
        Sinkhorn(c.data(), h, iters, static_cast<float>(kEps));
        EXPECT_TRUE(Near(c, want, 1e-9, SinkhornBound(h, iters))) << h << " streams, " << iters << " iterations";
      }
    }
  }
}

TEST(Sinkhorn, ManyStepsMakeADoublyStochasticMatrix) {
  Random random(2);
  for (int round = 0; round < 100; ++round) {
    std::vector<float> c = random.Normals(16);
    Sinkhorn(c.data(), 4, 20, static_cast<float>(kEps));
    for (size_t j = 0; j < 4; ++j) {
      double row = 0, column = 0;
      for (size_t k = 0; k < 4; ++k) {
        EXPECT_GT(c[4 * j + k], 0.0f);
        row += c[4 * j + k];
        column += c[4 * k + j];
      }
      EXPECT_NEAR(row, 1, 1e-3);     // after 20 iterations
      EXPECT_NEAR(column, 1, 3e-6);  // the last step: 1 - eps
    }
  }
}

// A start from exp(logits) would give other numbers, and an overflow for large logits.
TEST(Sinkhorn, Lesson09StartsFromARowSoftmax) {
  // Softmax of the rows: 3/4 1/4, 1/2 1/2. Columns: 3/5 1/3, 2/5 2/3. From exp it would be 3/4 1/2, 1/4 1/2.
  std::vector<float> c = {std::log(3.0f), 0, 0, 0};
  Sinkhorn(c.data(), 2, 1, 0);
  EXPECT_TRUE(Near(c, std::vector<double>{3.0 / 5, 1.0 / 3, 2.0 / 5, 2.0 / 3}, 0, test::Gamma(12)));
  c = {200, 100, -200, 300};
  Sinkhorn(c.data(), 2, 20, static_cast<float>(kEps));
  for (const float v : c) EXPECT_TRUE(std::isfinite(v));
}

// Eps is added to every element after the softmax: a zero weight becomes eps, and its column does not stay empty.
TEST(Sinkhorn, Lesson09AddsEpsAfterTheSoftmax) {
  std::vector<float> c = {0, -200, 0, -200};
  Sinkhorn(c.data(), 2, 1, static_cast<float>(kEps));
  // Column 1 is eps, eps: eps / (2 eps + eps) = 1/3. Column 0: (1 + eps) / (2 + 3 eps).
  EXPECT_NEAR(c[1], 1.0 / 3, 1e-6);
  EXPECT_NEAR(c[3], 1.0 / 3, 1e-6);
  EXPECT_NEAR(c[0], 0.5, 1e-6);
}

// HcPre with fn = 0: the mixes are functions of base alone, so each part of base must affect its own mix.
struct Mixes {
  std::vector<float> x, post, comb;
};

Mixes FromBase(const ExecContext& ctx, const std::vector<float>& base, const std::vector<float>& streams, int64_t d) {
  const std::vector<float> fn(static_cast<size_t>(24 * 4 * d), 0.0f);
  GuardBuffer<float> s(Shape{1, 4, d}, streams), b(Shape{24}, base), scale(Shape{3}, {1, 1, 1});
  GuardBuffer<float> x(Shape{1, d}), post(Shape{1, 4}), comb(Shape{1, 4, 4});
  HcPre(ctx, {.streams = s.tensor(),
              .fn = {.format = WeightFormat::kF32,
                     .rows = 24,
                     .cols = 4 * d,
                     .codes = reinterpret_cast<const uint8_t*>(fn.data())},
              .base = b.tensor(),
              .scale = scale.tensor(),
              .iters = 20,
              .eps = static_cast<float>(kEps),
              .norm_eps = 1e-6f,
              .x = x.tensor(),
              .post = post.tensor(),
              .comb = comb.tensor()});
  return {x.values(), post.values(), comb.values()};
}

double SigmoidDouble(double x) { return 1 / (1 + std::exp(-x)); }

// With the parameters split as [pre, comb, post] the residual would grow without bound.
TEST(HcMix, Lesson07ParametersArePrePostComb) {
  Random random(3);
  const std::vector<float> base = random.Normals(24, 2);
  const std::vector<float> streams = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};  // stream j is unit vector j
  for (const test::NamedContext& c : test::AllContexts()) {
    const Mixes m = FromBase(c.ctx, base, streams, 4);
    std::vector<double> pre, post;
    for (size_t j = 0; j < 4; ++j) {
      pre.push_back(SigmoidDouble(base[j]) + kEps);
      post.push_back(2 * SigmoidDouble(base[4 + j]));
    }
    const std::vector<double> comb = Flat(SinkhornDouble(Square({base.begin() + 8, base.end()}, 4), 20));
    EXPECT_TRUE(Near(m.x, pre, 0, test::Gamma(8))) << c.name;  // x = sum_j pre[j] e_j
    EXPECT_TRUE(Near(m.post, post, 0, test::Gamma(8))) << c.name;
    EXPECT_TRUE(Near(m.comb, comb, 1e-9, SinkhornBound(4, 20))) << c.name;
    for (const float p : m.post) EXPECT_TRUE(p > 0 && p < 2) << c.name;
  }
}

// Eps is added to pre, so that a closed gate still lets eps through; post has none.
TEST(HcMix, Lesson10PreHasEpsAndPostHasNone) {
  std::vector<float> base(24, 0.0f);
  for (size_t i = 0; i < 8; ++i) base[i] = -200;
  for (const test::NamedContext& c : test::AllContexts()) {
    const Mixes m = FromBase(c.ctx, base, std::vector<float>(8, 1000.0f), 2);
    EXPECT_TRUE(Near(m.x, std::vector<double>(2, 4 * 1000 * kEps), 0, 1e-6)) << c.name;
    EXPECT_TRUE(Near(m.post, std::vector<double>(4, 0.0), 0)) << c.name;
  }
}

// Rows of comb sum to 1: a sublayer that adds nothing keeps the sum of the streams.
TEST(HcMix, CombKeepsTheSumOfTheStreams) {
  Random random(4);
  const int64_t d = 5;
  const std::vector<float> base = random.Normals(24), streams = random.Normals(4 * d);
  const Mixes m = FromBase({}, base, streams, d);
  GuardBuffer<float> s(Shape{1, 4, d}, streams), y(Shape{1, d}, std::vector<float>(static_cast<size_t>(d), 0.0f));
  GuardBuffer<float> post(Shape{1, 4}, m.post), comb(Shape{1, 4, 4}, m.comb);
  HcPost({}, {.y = y.tensor(), .post = post.tensor(), .comb = comb.tensor(), .streams = s.tensor()});
  for (int64_t i = 0; i < d; ++i) {
    double before = 0, after = 0;
    for (int64_t j = 0; j < 4; ++j) {
      before += streams[static_cast<size_t>(j * d + i)];
      after += s[j * d + i];
    }
    EXPECT_NEAR(after, before, 1e-3);
  }
}

}  // namespace
}  // namespace dsv4
