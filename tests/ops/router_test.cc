#include "ops/router/router.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "ops/idle_row.h"
#include "ops/linear/linear.h"
#include "support/compare.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

void RouterOnGpu(const ExecContext&, const RouterArgs& a) {
  Mirror gpu;
  RouterArgs b = a;
  b.logits = gpu.In(a.logits), b.bias = gpu.In(a.bias), b.hash_table = gpu.In(a.hash_table),
  b.tokens = gpu.In(a.tokens);
  b.experts = gpu.Out(a.experts), b.weights = gpu.Out(a.weights);
  Router(gpu.ctx(), b);
  gpu.Finish();
}

double Score(double z) { return std::sqrt(z > 50 ? z : std::log1p(std::exp(z))); }

// Scores, their sum and the weights have about ten roundings each; exp and log1p have one unit in the last place, on a
// GPU two.
double WeightTolerance(On on) { return Gamma(on == On::kGpu ? 28 : 24); }

std::vector<double> Weights(std::span<const float> logits, std::span<const int32_t> chosen, double scaling) {
  double sum = 0;
  std::vector<double> w;
  for (const int32_t e : chosen) sum += Score(logits[static_cast<size_t>(e)]);
  for (const int32_t e : chosen) w.push_back(Score(logits[static_cast<size_t>(e)]) / sum * scaling);
  return w;
}

struct Routed {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Routed Learned(const Place<RouterArgs>& at, const std::vector<float>& logits, const std::vector<float>& bias, int64_t a,
               float scaling) {
  const int64_t e = static_cast<int64_t>(bias.size()), t = static_cast<int64_t>(logits.size()) / e;
  GuardBuffer<float> z(Shape{t, e}, logits), b(Shape{e}, bias), weights(Shape{t, a});
  GuardBuffer<int32_t> experts(Shape{t, a});
  at.run({.logits = z.tensor(),
          .bias = b.tensor(),
          .scaling_factor = scaling,
          .experts = experts.tensor(),
          .weights = weights.tensor()});
  return {experts.values(), weights.values()};
}

// The choice equals that of a full sort, with many ties: logits from few values.
DSV4_DEVICE_TEST(Router, Lesson15PicksWhatAFullSortPicks) {
  Random random(1);
  for (const int64_t e : {1, 2, 6, 16, 33, 128, 256, 384, 512}) {
    const int64_t most = on == On::kGpu ? std::min<int64_t>(e, 32) : e;  // a GPU's kernel chooses at most 32
    for (const int64_t a : {int64_t{1}, std::min<int64_t>(e, 6), most}) {
      const int64_t t = 30;
      std::vector<float> logits;
      for (int64_t i = 0; i < t * e; ++i) {
        const int64_t levels = (i / e) % 3 == 0 ? 2 : (i / e) % 3 == 1 ? 12 : 4000;  // ties, some ties, few
        logits.push_back(static_cast<float>(random.Index(levels) - levels / 2) * 0.0078125f *
                         (levels > 100 ? 1.0f : 64.0f));
      }
      for (const auto& c : Places(on, Router, RouterOnGpu)) {
        const Routed r = Learned(c, logits, std::vector<float>(static_cast<size_t>(e), 0.0f), a, 1);
        for (int64_t row = 0; row < t; ++row) {
          const float* z = logits.data() + row * e;
          std::vector<int32_t> order(static_cast<size_t>(e));
          std::iota(order.begin(), order.end(), 0);
          std::stable_sort(order.begin(), order.end(), [z](int32_t x, int32_t y) { return z[x] > z[y]; });
          order.resize(static_cast<size_t>(a));
          const std::vector<int32_t> got(r.experts.begin() + row * a, r.experts.begin() + (row + 1) * a);
          ASSERT_EQ(got, order) << c.name << ", E " << e << ", row " << row;
        }
      }
    }
  }
}

DSV4_DEVICE_TEST(Router, BiasChoosesButDoesNotWeigh) {
  Random random(2);
  for (const int64_t e : {32, 256, 384}) {
    const int64_t t = 40, a = 6;
    const std::vector<float> logits = random.Normals(t * e, 2), bias = random.Normals(e);
    for (const auto& c : Places(on, Router, RouterOnGpu)) {
      const Routed r = Learned(c, logits, bias, a, 2.5f);
      for (int64_t row = 0; row < t; ++row) {
        const std::span<const float> z(logits.data() + row * e, static_cast<size_t>(e));
        const std::span<const int32_t> chosen(r.experts.data() + row * a, static_cast<size_t>(a));
        const std::span<const float> w(r.weights.data() + row * a, static_cast<size_t>(a));
        EXPECT_TRUE(Near(w, Weights(z, chosen, 2.5), 0, WeightTolerance(on))) << c.name;
        EXPECT_NEAR(std::accumulate(w.begin(), w.end(), 0.0), 2.5, 1e-5);
        // Best first by score plus bias; no expert that is not chosen is better than the last chosen one.
        const auto biased = [&](int64_t x) { return Score(z[static_cast<size_t>(x)]) + bias[static_cast<size_t>(x)]; };
        for (size_t i = 1; i < chosen.size(); ++i) EXPECT_GE(biased(chosen[i - 1]), biased(chosen[i]) - 1e-6);
        for (int64_t x = 0; x < e; ++x) {
          if (std::find(chosen.begin(), chosen.end(), x) == chosen.end()) {
            EXPECT_LE(biased(x), biased(chosen.back()) + 1e-6);
          }
        }
      }
    }
  }
}

DSV4_DEVICE_TEST(Router, HandComputed) {
  // softplus(log(e - 1)) = 1, softplus(log(e^4 - 1)) = 4: scores 1 and 2. The bias lifts expert 2 over expert 0.
  const float one = static_cast<float>(std::log(std::exp(1.0) - 1)),
              four = static_cast<float>(std::log(std::exp(4.0) - 1));
  for (const auto& c : Places(on, Router, RouterOnGpu)) {
    const Routed r = Learned(c, {one, four, one, -30}, {0, 0, 5, 0}, 2, 1.5f);
    EXPECT_EQ(r.experts, (std::vector<int32_t>{2, 1})) << c.name;
    EXPECT_TRUE(Near(r.weights, std::vector<float>{0.5f, 1.0f}, 1e-6)) << c.name;
  }
}

DSV4_DEVICE_TEST(Router, TiesGoToTheLowerExpert) {
  for (const auto& c : Places(on, Router, RouterOnGpu)) {
    EXPECT_EQ(Learned(c, {1, 3, 3, 3}, {0, 0, 0, 0}, 2, 1).experts, (std::vector<int32_t>{1, 2})) << c.name;
    EXPECT_EQ(Learned(c, std::vector<float>(8, -500.0f), std::vector<float>(8, 0.0f), 3, 1).experts,
              (std::vector<int32_t>{0, 1, 2}))
        << c.name;
    std::vector<float> many(384, 0.5f);  // the lowest of equals comes after its lane's first expert
    many[3] = many[70] = many[35] = 2;
    EXPECT_EQ(Learned(c, many, std::vector<float>(384, 0.0f), 5, 1).experts, (std::vector<int32_t>{3, 35, 70, 0, 1}))
        << c.name;
  }
}

// Hash-routed experts have the weights of their scores, not equal weights.
DSV4_DEVICE_TEST(Router, Lesson14HashLayersWeighByLearnedScores) {
  Random random(3);
  const int64_t t = 20, e = 16, a = 3, v = 50;
  GuardBuffer<float> logits(Shape{t, e}, random.Normals(t * e, 2));
  GuardBuffer<int32_t> table(Shape{v, a}), tokens(Shape{t});
  for (int64_t i = 0; i < v; ++i) {
    const std::vector<int32_t> p = random.Permutation(e);
    for (int64_t j = 0; j < a; ++j) table[i * a + j] = p[static_cast<size_t>(j)];
  }
  for (int64_t i = 0; i < t; ++i) tokens[i] = static_cast<int32_t>(i == 0 ? v - 1 : random.Index(v));
  for (const auto& c : Places(on, Router, RouterOnGpu)) {
    GuardBuffer<int32_t> experts(Shape{t, a});
    GuardBuffer<float> weights(Shape{t, a});
    c.run({.logits = logits.tensor(),
           .hash_table = table.tensor(),
           .tokens = tokens.tensor(),
           .scaling_factor = 1.5f,
           .experts = experts.tensor(),
           .weights = weights.tensor()});
    double spread = 0;
    for (int64_t r = 0; r < t; ++r) {
      EXPECT_TRUE(std::ranges::equal(experts.row(r), table.row(tokens[r]))) << c.name;  // table order
      EXPECT_TRUE(Near(weights.row(r), Weights(logits.row(r), experts.row(r), 1.5), 0, WeightTolerance(on))) << c.name;
      for (const float w : weights.row(r)) spread = std::max(spread, std::fabs(w - 0.5));
    }
    EXPECT_GT(spread, 0.2);
  }
}

// For any logits.
DSV4_DEVICE_TEST(Router, IdleRowsHaveNoExperts) {
  Random random(9);
  const int64_t t = 5, e = 16, a = 3, v = 7;
  std::vector<float> z = random.Normals(t * e, 2);
  z[static_cast<size_t>(3 * e)] = std::numeric_limits<float>::quiet_NaN();
  GuardBuffer<float> logits(Shape{t, e}, z), bias(Shape{e}, random.Normals(e));
  GuardBuffer<int32_t> table(Shape{v, a}), tokens(Shape{t}, {5, 2, 6, kIdleToken, kIdleToken});
  for (int64_t i = 0; i < v * a; ++i) table[i] = static_cast<int32_t>(i % e);
  for (const bool hash : {false, true}) {
    for (const auto& c : Places(on, Router, RouterOnGpu)) {
      GuardBuffer<int32_t> experts(Shape{t, 1 + a});
      GuardBuffer<float> weights(Shape{t, 1 + a});
      c.run({.logits = logits.tensor(),
             .bias = hash ? Tensor{} : bias.tensor(),
             .hash_table = hash ? table.tensor() : Tensor{},
             .tokens = tokens.tensor(),
             .always = e,
             .experts = experts.tensor(),
             .weights = weights.tensor()});
      for (const int64_t idle : {3, 4}) {
        EXPECT_EQ(std::ranges::count(experts.row(idle), kNoExpert), 1 + a) << c.name;
        EXPECT_EQ(std::ranges::count(weights.row(idle), 0.0f), 1 + a) << c.name;
      }
      EXPECT_EQ(std::ranges::count(experts.row(1), kNoExpert), 0) << c.name;
    }
  }
}

DSV4_DEVICE_TEST(Router, HugeAndTinyLogitsGiveFiniteWeights) {
  for (const auto& c : Places(on, Router, RouterOnGpu)) {
    // exp(1000) overflows; softplus is then the logit itself.
    const Routed huge = Learned(c, {1000, 4000, -1000, 90}, {0, 0, 0, 0}, 2, 3);
    EXPECT_EQ(huge.experts, (std::vector<int32_t>{1, 0})) << c.name;
    EXPECT_TRUE(Near(huge.weights, std::vector<float>{2, 1}, 0, WeightTolerance(on))) << c.name;
    const Routed largest = Learned(c, std::vector<float>(4, std::numeric_limits<float>::max()), {0, 0, 0, 0}, 4, 1);
    EXPECT_TRUE(Near(largest.weights, std::vector<float>(4, 0.25f), 0, WeightTolerance(on))) << c.name;
    // Every score underflows to zero: weights are zero, not 0 / 0.
    const Routed none = Learned(c, std::vector<float>(4, -1000.0f), {0, 0, 0, 0}, 2, 1);
    EXPECT_TRUE(Near(none.weights, std::vector<float>(2, 0.0f), 0)) << c.name;
    // Scores far apart: the small one keeps its size.
    const Routed apart = Learned(c, {5, -40}, {0, 0}, 2, 1);
    EXPECT_TRUE(
        Near(apart.weights, Weights(std::vector<float>{5, -40}, std::vector<int32_t>{0, 1}, 1), 0, WeightTolerance(on)))
        << c.name;
  }
}

DSV4_DEVICE_TEST(Router, ARowDoesNotDependOnItsBatch) {
  Random random(4);
  for (const auto& [e, a] : {std::pair<int64_t, int64_t>{20, 4}, {256, 6}}) {
    const int64_t t = 25;
    const std::vector<float> logits = random.Normals(t * e), bias = random.Normals(e);
    for (const auto& c : Places(on, Router, RouterOnGpu)) {
      const Routed all = Learned(c, logits, bias, a, 1.5f);
      for (const int64_t r : {0, 12, 24}) {
        const Routed one = Learned(c, {logits.begin() + r * e, logits.begin() + (r + 1) * e}, bias, a, 1.5f);
        EXPECT_TRUE(std::equal(one.experts.begin(), one.experts.end(), all.experts.begin() + r * a)) << c.name;
        EXPECT_TRUE(
            BitEqual(one.weights, std::vector<float>(all.weights.begin() + r * a, all.weights.begin() + (r + 1) * a)))
            << c.name;
      }
    }
  }
}

// Damaged logits: the experts are distinct and in range.
TEST(CudaRouter, NanLogitsChooseDistinctExperts) {
  DSV4_GPU_OR_SKIP();
  for (const auto& c : Places(On::kGpu, Router, RouterOnGpu)) {
    const Routed nan = Learned(c, std::vector<float>(40, std::nanf("")), std::vector<float>(40, 0.0f), 6, 1);
    EXPECT_EQ(nan.experts, (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  }
}

// Ids out of range stay in bounds on a GPU, which cannot refuse them.
TEST(CudaRouter, Lesson21BoundsIds) {
  DSV4_GPU_OR_SKIP();
  Random random(3);
  const int64_t t = 20, e = 16, a = 3, v = 50;
  GuardBuffer<float> logits(Shape{t, e}, random.Normals(t * e, 2)), weights(Shape{t, a});
  GuardBuffer<int32_t> table(Shape{v, a}), tokens(Shape{t}), experts(Shape{t, a});
  for (int64_t i = 0; i < v * a; ++i) table[i] = i % 2 ? -7 : 1 << 30;
  for (int64_t i = 0; i < t; ++i) tokens[i] = static_cast<int32_t>(i == 0 ? v - 1 : random.Index(v));
  tokens[1] = -1, tokens[2] = 50, tokens[3] = std::numeric_limits<int32_t>::max();
  tokens[4] = std::numeric_limits<int32_t>::min();
  RouterOnGpu({}, {.logits = logits.tensor(),
                   .hash_table = table.tensor(),
                   .tokens = tokens.tensor(),
                   .scaling_factor = 1.5f,
                   .experts = experts.tensor(),
                   .weights = weights.tensor()});
  for (const int32_t x : experts.span()) EXPECT_TRUE(x == 0 || x == e - 1) << x;
}

// An expert that every token has comes first with weight 1 and changes nothing else.
DSV4_DEVICE_TEST(Router, AlwaysPutsAnExpertInFront) {
  Random random(5);
  const int64_t t = 7, e = 256, a = 6;
  const std::vector<float> logits = random.Normals(t * e), bias = random.Normals(e);
  for (const auto& c : Places(on, Router, RouterOnGpu)) {
    SCOPED_TRACE(c.name);
    const Routed plain = Learned(c, logits, bias, a, 1.5f);
    GuardBuffer<float> z(Shape{t, e}, logits), b(Shape{e}, bias), weights(Shape{t, a + 1});
    GuardBuffer<int32_t> experts(Shape{t, a + 1});
    c.run({.logits = z.tensor(),
           .bias = b.tensor(),
           .scaling_factor = 1.5f,
           .always = 256,
           .experts = experts.tensor(),
           .weights = weights.tensor()});
    for (int64_t row = 0; row < t; ++row) {
      EXPECT_EQ(experts[row * (a + 1)], 256);
      EXPECT_EQ(weights[row * (a + 1)], 1.0f);
      for (int64_t i = 0; i < a; ++i) {
        EXPECT_EQ(experts[row * (a + 1) + 1 + i], plain.experts[static_cast<size_t>(row * a + i)]);
        EXPECT_EQ(weights[row * (a + 1) + 1 + i], plain.weights[static_cast<size_t>(row * a + i)]);
      }
    }
  }
}

// The op also computes the logits of a few tokens, on a GPU: the bits of linear and router one after the other.
struct FewTokensCase {
  int64_t experts, k;
  int32_t always;
  bool hash;
  int64_t tokens = 1;
};

// The last of several tokens is a padding row.
void CheckMultiplies(Random& random, const FewTokensCase& c, int rounds) {
  SCOPED_TRACE(StrCat(c.experts, " experts, K ", c.k, ", T ", c.tokens));
  const int64_t t = c.tokens;
  const QuantFixture w(random, {WeightFormat::kBf16}, c.experts, c.k);
  const int64_t count = 6, slots = count + (c.always >= 0 ? 1 : 0), vocabulary = 3;
  for (int round = 0; round < rounds; ++round) {
    GuardBuffer<float> x({t, c.k}, random.Normals(t * c.k, round == 1 ? 0.0f : 0.1f)),
        bias({c.experts}, random.Normals(c.experts, 0.2f));
    if (round == 2) x[7] = std::numeric_limits<float>::quiet_NaN();
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < vocabulary * count; ++i) ids.push_back(static_cast<int32_t>(random.Index(c.experts)));
    GuardBuffer<int32_t> table({vocabulary, count}, ids), token(Shape{t});
    for (int64_t i = 0; i < t; ++i) token[i] = i > 0 && i == t - 1 ? kIdleToken : static_cast<int32_t>(round + i);
    std::vector<float> logits[2], weights[2];
    std::vector<int32_t> experts[2];
    for (const bool along : {false, true}) {
      GuardBuffer<float> z({t, c.experts}), chosen_weights({t, slots});
      GuardBuffer<int32_t> chosen({t, slots});
      Mirror gpu;
      RouterArgs args{.logits = gpu.Out(z.tensor()),
                      .bias = c.hash ? Tensor{} : gpu.In(bias.tensor()),
                      .hash_table = c.hash ? gpu.In(table.tensor()) : Tensor{},
                      .tokens = gpu.In(token.tensor()),
                      .scaling_factor = 1.5f,
                      .always = c.always,
                      .experts = gpu.Out(chosen.tensor()),
                      .weights = gpu.Out(chosen_weights.tensor()),
                      .x = gpu.In(x.tensor()),
                      .w = gpu.Weight(w.tensor())};
      ASSERT_TRUE(RouterMultiplies(gpu.ctx(), t, args.w, count));
      if (!along) {
        Linear(gpu.ctx(), {.x = args.x, .parts = {{args.w, args.logits}}});
        args.w = {};
      }
      Router(gpu.ctx(), args);
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
  for (const FewTokensCase& c : {FewTokensCase{256, 4096, 256, false},
                                 {256, 4096, 256, true},
                                 {250, 1000, -1, false},
                                 {241, 5120, 241, false},
                                 {256, 4096, 256, false, 4},
                                 {256, 4096, 256, true, 3},
                                 {250, 1000, -1, false, 2},
                                 {250, 520, -1, true, 4}}) {
    CheckMultiplies(random, c, 4);
  }
}

TEST(CudaRouter, MultipliesShort) {
  DSV4_GPU_OR_SKIP();
  Random random(22);
  CheckMultiplies(random, {256, 512, 256, false}, 1);
  CheckMultiplies(random, {256, 512, 256, false, 4}, 1);
}

// Ids are validated when a model is loaded, and bounded here.
TEST(RouterDeathTest, Lesson21RefusesIdsOutOfRange) {
  GuardBuffer<float> logits(Shape{1, 4}, {0, 0, 0, 0}), weights(Shape{1, 2}), bias(Shape{4}, {0, 0, 0, 0});
  GuardBuffer<int32_t> experts(Shape{1, 2}), table(Shape{2, 2}, {0, 1, 4, -1});
  for (const int32_t token : {-1, 1, 2}) {
    GuardBuffer<int32_t> tokens(Shape{1}, {token});
    EXPECT_DEATH(Router({}, {.logits = logits.tensor(),
                             .hash_table = table.tensor(),
                             .tokens = tokens.tensor(),
                             .experts = experts.tensor(),
                             .weights = weights.tensor()}),
                 "token -?[0-9]");
  }
  EXPECT_DEATH(Router({}, {.logits = logits.tensor(),
                           .bias = bias.tensor(),
                           .hash_table = table.tensor(),
                           .experts = experts.tensor(),
                           .weights = weights.tensor()}),
               "one of hash table and bias");
}

}  // namespace
}  // namespace dsv4::test
