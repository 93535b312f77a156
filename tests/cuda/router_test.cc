#include "ops/router/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/linear/linear.h"
#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"
#include "support/random.h"

namespace dsv4 {
void LinearCuda(const ExecContext& ctx, const LinearArgs& args);
void RouterCuda(const ExecContext& ctx, const RouterArgs& args);
}

namespace dsv4::test {
namespace {

double Score(double z) { return std::sqrt(z > 50 ? z : std::log1p(std::exp(z))); }

// Scores, their sum and the weights meet about ten roundings each, and exp and log1p two units in the last place.
const double kWeightTolerance = Gamma(28);

struct Routed {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Routed Learned(const std::vector<float>& logits, const std::vector<float>& bias, int64_t a, float scaling) {
  const int64_t e = static_cast<int64_t>(bias.size()), t = static_cast<int64_t>(logits.size()) / e;
  GuardBuffer<float> z(Shape{t, e}, logits), b(Shape{e}, bias), weights(Shape{t, a});
  GuardBuffer<int32_t> experts(Shape{t, a});
  Mirror gpu;
  RouterCuda(gpu.ctx(), {.logits = gpu.In(z.tensor()), .bias = gpu.In(b.tensor()), .scaling_factor = scaling,
                         .experts = gpu.Out(experts.tensor()), .weights = gpu.Out(weights.tensor())});
  gpu.Finish();
  return {experts.values(), weights.values()};
}

// Lesson 15: a selection sort lost its temporary. Against a full sort, with many ties: logits from few values.
TEST(CudaRouter, Lesson15PicksWhatAFullSortPicks) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const int64_t e : {1, 2, 6, 16, 33, 128, 256, 384, 512}) {
    for (const int64_t a : {int64_t{1}, std::min<int64_t>(e, 6), std::min<int64_t>(e, 32)}) {
      const int64_t t = 30;
      std::vector<float> logits;
      for (int64_t i = 0; i < t * e; ++i) {
        const int64_t levels = (i / e) % 3 == 0 ? 2 : (i / e) % 3 == 1 ? 12 : 4000;  // ties, some ties, few
        logits.push_back(static_cast<float>(random.Index(levels) - levels / 2) * 0.0078125f * (levels > 100 ? 1.0f : 64.0f));
      }
      const Routed r = Learned(logits, std::vector<float>(static_cast<size_t>(e), 0.0f), a, 1);
      for (int64_t row = 0; row < t; ++row) {
        const float* z = logits.data() + row * e;
        std::vector<int32_t> order(static_cast<size_t>(e));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [z](int32_t x, int32_t y) { return z[x] > z[y]; });
        order.resize(static_cast<size_t>(a));
        const std::vector<int32_t> got(r.experts.begin() + row * a, r.experts.begin() + (row + 1) * a);
        ASSERT_EQ(got, order) << "E " << e << ", row " << row;
      }
    }
  }
}

TEST(CudaRouter, BiasChoosesButDoesNotWeigh) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  for (const int64_t e : {32, 256, 384}) {
    const int64_t t = 40, a = 6;
    const std::vector<float> logits = random.Normals(t * e, 2), bias = random.Normals(e);
    const Routed r = Learned(logits, bias, a, 2.5f);
    for (int64_t row = 0; row < t; ++row) {
      const float* z = logits.data() + row * e;
      const int32_t* chosen = r.experts.data() + row * a;
      double sum = 0;
      for (int64_t i = 0; i < a; ++i) sum += Score(z[chosen[i]]);
      for (int64_t i = 0; i < a; ++i) {
        const double want = Score(z[chosen[i]]) / sum * 2.5;
        EXPECT_NEAR(r.weights[static_cast<size_t>(row * a + i)], want, want * kWeightTolerance);
      }
      // Best first by score plus bias, and none left out that is better than the last one in.
      const auto biased = [&](int64_t x) { return Score(z[x]) + bias[static_cast<size_t>(x)]; };
      for (int64_t i = 1; i < a; ++i) EXPECT_GE(biased(chosen[i - 1]), biased(chosen[i]) - 1e-6);
      for (int64_t x = 0; x < e; ++x) {
        if (std::find(chosen, chosen + a, x) == chosen + a) {
          EXPECT_LE(biased(x), biased(chosen[a - 1]) + 1e-6);
        }
      }
    }
  }
}

TEST(CudaRouter, TiesGoToTheLowerExpert) {
  DSV4_GPU_OR_SKIP();
  EXPECT_EQ(Learned({1, 3, 3, 3}, {0, 0, 0, 0}, 2, 1).experts, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(Learned(std::vector<float>(8, -500.0f), std::vector<float>(8, 0.0f), 3, 1).experts, (std::vector<int32_t>{0, 1, 2}));
  std::vector<float> many(384, 0.5f);  // the lowest of equals lies behind its lane's first expert
  many[3] = many[70] = many[35] = 2;
  EXPECT_EQ(Learned(many, std::vector<float>(384, 0.0f), 5, 1).experts, (std::vector<int32_t>{3, 35, 70, 0, 1}));
}

// Lesson 14: the prototype gave hash-routed experts equal weights. Lesson 21: ids out of range stay in bounds.
TEST(CudaRouter, HashLayersWeighByLearnedScoresAndBoundIds) {
  DSV4_GPU_OR_SKIP();
  Random random(3);
  const int64_t t = 20, e = 16, a = 3, v = 50;
  GuardBuffer<float> logits(Shape{t, e}, random.Normals(t * e, 2)), want_weights(Shape{t, a}), weights(Shape{t, a});
  GuardBuffer<int32_t> table(Shape{v, a}), tokens(Shape{t}), want(Shape{t, a}), experts(Shape{t, a});
  for (int64_t i = 0; i < v; ++i) {
    const std::vector<int32_t> p = random.Permutation(e);
    for (int64_t j = 0; j < a; ++j) table[i * a + j] = p[static_cast<size_t>(j)];
  }
  for (int64_t i = 0; i < t; ++i) tokens[i] = static_cast<int32_t>(i == 0 ? v - 1 : random.Index(v));
  Router({.reference_ops = true}, {.logits = logits.tensor(), .hash_table = table.tensor(), .tokens = tokens.tensor(),
                                   .scaling_factor = 1.5f, .experts = want.tensor(), .weights = want_weights.tensor()});
  const auto run = [&] {
    Mirror gpu;
    RouterCuda(gpu.ctx(), {.logits = gpu.In(logits.tensor()), .hash_table = gpu.In(table.tensor()), .tokens = gpu.In(tokens.tensor()),
                           .scaling_factor = 1.5f, .experts = gpu.Out(experts.tensor()), .weights = gpu.Out(weights.tensor())});
    gpu.Finish();
  };
  run();
  EXPECT_EQ(experts.values(), want.values());
  EXPECT_TRUE(Near(weights.span(), want_weights.span(), 0, kWeightTolerance));
  for (int64_t i = 0; i < v * a; ++i) table[i] = i % 2 ? -7 : 1 << 30;
  tokens[1] = -1, tokens[2] = 50, tokens[3] = std::numeric_limits<int32_t>::max(), tokens[4] = std::numeric_limits<int32_t>::min();
  run();
  for (const int32_t x : experts.span()) EXPECT_TRUE(x == 0 || x == e - 1) << x;
}

TEST(CudaRouter, HugeAndTinyLogits) {
  DSV4_GPU_OR_SKIP();
  const Routed huge = Learned({1000, 4000, -1000, 90}, {0, 0, 0, 0}, 2, 3);
  EXPECT_EQ(huge.experts, (std::vector<int32_t>{1, 0}));
  EXPECT_TRUE(Near(huge.weights, std::vector<float>{2, 1}, 0, kWeightTolerance));
  const Routed none = Learned(std::vector<float>(4, -1000.0f), {0, 0, 0, 0}, 2, 1);
  EXPECT_TRUE(Near(none.weights, std::vector<float>(2, 0.0f), 0));
  const Routed nan = Learned(std::vector<float>(40, std::nanf("")), std::vector<float>(40, 0.0f), 6, 1);
  EXPECT_EQ(nan.experts, (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));  // distinct and in range, whatever the logits
}

TEST(CudaRouter, ARowDoesNotDependOnItsBatch) {
  DSV4_GPU_OR_SKIP();
  Random random(4);
  const int64_t t = 25, e = 256, a = 6;
  const std::vector<float> logits = random.Normals(t * e), bias = random.Normals(e);
  const Routed all = Learned(logits, bias, a, 1.5f);
  for (const int64_t r : {0, 12, 24}) {
    const Routed one = Learned({logits.begin() + r * e, logits.begin() + (r + 1) * e}, bias, a, 1.5f);
    EXPECT_TRUE(std::equal(one.experts.begin(), one.experts.end(), all.experts.begin() + r * a));
    EXPECT_TRUE(BitEqual(one.weights, std::vector<float>(all.weights.begin() + r * a, all.weights.begin() + (r + 1) * a)));
  }
}

// An expert that every token has stands first with weight 1 and changes nothing else.
TEST(CudaRouter, AlwaysPutsAnExpertInFront) {
  DSV4_GPU_OR_SKIP();
  Random random(5);
  const int64_t t = 7, e = 256, a = 6;
  const std::vector<float> logits = random.Normals(t * e), bias = random.Normals(e);
  const Routed plain = Learned(logits, bias, a, 1.5f);
  GuardBuffer<float> z(Shape{t, e}, logits), b(Shape{e}, bias), weights(Shape{t, a + 1}), want_weights(Shape{t, a + 1});
  GuardBuffer<int32_t> experts(Shape{t, a + 1}), want(Shape{t, a + 1});
  Mirror gpu;
  RouterCuda(gpu.ctx(), {.logits = gpu.In(z.tensor()), .bias = gpu.In(b.tensor()), .scaling_factor = 1.5f, .always = 256,
                         .experts = gpu.Out(experts.tensor()), .weights = gpu.Out(weights.tensor())});
  gpu.Finish();
  Router({.reference_ops = true}, {.logits = z.tensor(), .bias = b.tensor(), .scaling_factor = 1.5f, .always = 256,
                                   .experts = want.tensor(), .weights = want_weights.tensor()});
  EXPECT_EQ(experts.values(), want.values());
  for (int64_t row = 0; row < t; ++row) {
    EXPECT_EQ(experts[row * (a + 1)], 256);
    EXPECT_EQ(weights[row * (a + 1)], 1.0f);
    EXPECT_EQ(want_weights[row * (a + 1)], 1.0f);
    for (int64_t i = 0; i < a; ++i) {
      EXPECT_EQ(experts[row * (a + 1) + 1 + i], plain.experts[static_cast<size_t>(row * a + i)]);
      EXPECT_EQ(weights[row * (a + 1) + 1 + i], plain.weights[static_cast<size_t>(row * a + i)]);
    }
  }
}

// One token's logits made along the way: the bits of linear and router one after the other.
struct OneTokenCase {
  int64_t experts, k;
  int32_t always;
  bool hash;
};

void CheckMultiplies(Random& random, const OneTokenCase& c, int rounds) {
  SCOPED_TRACE(StrCat(c.experts, " experts, K ", c.k));
  const QuantFixture w(random, {WeightFormat::kBf16}, c.experts, c.k);
  const int64_t count = 6, slots = count + (c.always >= 0 ? 1 : 0), vocabulary = 3;
  for (int round = 0; round < rounds; ++round) {
    GuardBuffer<float> x({1, c.k}, random.Normals(c.k, round == 1 ? 0.0f : 0.1f)), bias({c.experts}, random.Normals(c.experts, 0.2f));
    if (round == 2) x[7] = std::numeric_limits<float>::quiet_NaN();
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < vocabulary * count; ++i) ids.push_back(static_cast<int32_t>(random.Index(c.experts)));
    GuardBuffer<int32_t> table({vocabulary, count}, ids), token({1}, {round});
    std::vector<float> logits[2], weights[2];
    std::vector<int32_t> experts[2];
    for (const bool along : {false, true}) {
      GuardBuffer<float> z({1, c.experts}), chosen_weights({1, slots});
      GuardBuffer<int32_t> chosen({1, slots});
      Mirror gpu;
      RouterArgs args{.logits = gpu.Out(z.tensor()), .bias = c.hash ? Tensor{} : gpu.In(bias.tensor()),
                      .hash_table = c.hash ? gpu.In(table.tensor()) : Tensor{}, .tokens = gpu.In(token.tensor()), .scaling_factor = 1.5f,
                      .always = c.always, .experts = gpu.Out(chosen.tensor()), .weights = gpu.Out(chosen_weights.tensor()),
                      .x = gpu.In(x.tensor()), .w = gpu.Weight(w.tensor())};
      ASSERT_TRUE(RouterMultiplies(gpu.ctx(), 1, args.w, count));
      if (!along) {
        LinearCuda(gpu.ctx(), {.x = args.x, .parts = {{args.w, args.logits}}});
        args.w = {};
      }
      RouterCuda(gpu.ctx(), args);
      gpu.Finish();
      logits[along] = z.values(), weights[along] = chosen_weights.values(), experts[along] = chosen.values();
    }
    EXPECT_TRUE(BitEqual(logits[1], logits[0])) << round;
    EXPECT_TRUE(BitEqual(weights[1], weights[0])) << round;
    EXPECT_EQ(experts[1], experts[0]) << round;
  }
}

TEST(CudaRouter, MultipliesWithTheBitsOfLinear) {
  DSV4_GPU_OR_SKIP();
  Random random(21);
  for (const OneTokenCase& c : {OneTokenCase{256, 4096, 256, false}, {256, 4096, 256, true}, {250, 1000, -1, false}, {241, 5120, 241, false}}) {
    CheckMultiplies(random, c, 4);
  }
}

TEST(CudaRouter, MultipliesShort) {
  DSV4_GPU_OR_SKIP();
  Random random(22);
  CheckMultiplies(random, {256, 512, 256, false}, 1);
}

}  // namespace
}  // namespace dsv4::test
