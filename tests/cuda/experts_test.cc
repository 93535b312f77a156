#include "ops/experts/experts.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "ops/linear/linear.h"
#include "ops/round_activation/round_activation.h"
#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

namespace dsv4 {
void ExpertsCuda(const ExecContext& ctx, const ExpertsArgs& args);
}

namespace dsv4::test {
namespace {

constexpr float kLimit = 3.0f;  // low, so that both clamps act

// Random experts of shape [F, D] and a batch that chooses among them. `hot`: every token chooses expert 0.
struct Layer {
  Layer(Random& random, QuantCase kind, int64_t num_experts, int64_t d_, int64_t f_, int64_t t_, int64_t slots_,
        bool hot = false)
      : d(d_),
        f(f_),
        t(t_),
        slots(slots_),
        x({t, d}, random.Normals(t * d, 0.2f)),
        experts({t, slots}),
        weights({t, slots}, random.Uniforms(t * slots, 0, 1)),
        shared({t, d}, random.Normals(t * d)) {
    for (int64_t e = 0; e < num_experts; ++e) {
      gate.emplace_back(random, kind, f, d);
      up.emplace_back(random, kind, f, d);
      down.emplace_back(random, kind, d, f);
      matrices.push_back({gate.back().tensor(), up.back().tensor(), down.back().tensor()});
    }
    for (int64_t i = 0; i < t; ++i) {
      std::vector<int32_t> order = random.Permutation(num_experts);
      if (hot) std::swap(order[0], *std::find(order.begin(), order.end(), 0));
      for (int64_t a = 0; a < slots; ++a) experts[i * slots + a] = order[static_cast<size_t>(a % num_experts)];
    }
  }

  int64_t d, f, t, slots;
  GuardBuffer<float> x;
  GuardBuffer<int32_t> experts;
  GuardBuffer<float> weights, shared;
  std::vector<QuantFixture> gate, up, down;
  std::vector<ExpertMatrices> matrices;
};

struct Mode {
  ActivationDtype activation = ActivationDtype::kNative;
  bool f32_inputs = false;
};

Tensor Rows(const Tensor& x, int64_t begin, int64_t end) {
  const int64_t width = x.num_elements() / x.dim(0);
  return {static_cast<uint8_t*>(x.data) + begin * width * SizeOf(x.dtype), x.dtype, {end - begin, width}};
}

// Output for tokens [begin, end) of the layer's batch.
std::vector<float> Output(Layer& l, Mode mode, int64_t begin, int64_t end, bool in_place = false, int32_t always = -1) {
  const int64_t t = end - begin;
  GuardBuffer<float> y({t, l.d});
  if (in_place) std::copy_n(l.shared.row(begin).data(), t * l.d, y.data());
  Mirror gpu;
  gpu.ctx().f32_inputs = mode.f32_inputs;
  std::vector<ExpertMatrices> matrices;
  for (const ExpertMatrices& m : l.matrices)
    matrices.push_back({gpu.Weight(m.gate), gpu.Weight(m.up), gpu.Weight(m.down)});
  const Tensor out = gpu.Out(y.tensor());
  ExpertsCuda(gpu.ctx(), {.x = gpu.In(Rows(l.x.tensor(), begin, end)),
                          .experts = gpu.In(Rows(l.experts.tensor(), begin, end)),
                          .weights = gpu.In(Rows(l.weights.tensor(), begin, end)),
                          .matrices = {gpu.Array(matrices), matrices.size()},
                          .first = matrices[0],
                          .limit = kLimit,
                          .activation = mode.activation,
                          .hidden = gpu.Temp({t * l.slots, 2 * l.f}),
                          .outputs = gpu.Temp({t * l.slots, l.d}),
                          .rounded_x = gpu.Temp({t, l.d}),
                          .shared = in_place ? out : gpu.In(Rows(l.shared.tensor(), begin, end)),
                          .y = out,
                          .always = always});
  gpu.Finish();
  return y.values();
}

std::vector<float> Reference(Layer& l, ActivationDtype activation) {
  GuardBuffer<float> hidden({l.t * l.slots, 2 * l.f}), outputs({l.t * l.slots, l.d}), y({l.t, l.d});
  Experts({.reference_ops = true}, {.x = l.x.tensor(),
                                    .experts = l.experts.tensor(),
                                    .weights = l.weights.tensor(),
                                    .matrices = l.matrices,
                                    .limit = kLimit,
                                    .activation = activation,
                                    .hidden = hidden.tensor(),
                                    .outputs = outputs.tensor(),
                                    .shared = l.shared.tensor(),
                                    .y = y.tensor()});
  return y.values();
}

// As in tests/ops/experts_test.cc: the error of h = silu(min(g, L)) clamp(u) w from those of g and u, plus 12
// roundings, through the down projection, plus the down projection's own, plus one addition a slot. `input`: relative
// error of a product's input, 2^-17 for two BF16 numbers. A tensor core adds with at least 24 bits but cuts instead of
// rounding: twice the unit; its additions are those of 4 steps a tile, of a warp's tiles, of eight warps.
std::vector<double> Bounds(Layer& l, const std::vector<float>& want, double input) {
  const auto gamma = [&](int64_t k) { return 2 * Gamma(CeilDiv(k, 16) + 24) + input; };
  std::vector<std::vector<double>> gate, up, down;
  for (size_t e = 0; e < l.matrices.size(); ++e) {
    gate.push_back(l.gate[e].Decoded());
    up.push_back(l.up[e].Decoded());
    down.push_back(l.down[e].Decoded());
  }
  std::vector<double> bounds;
  for (int64_t t = 0; t < l.t; ++t) {
    std::vector<double> bound(static_cast<size_t>(l.d));
    for (int64_t s = 0; s < l.slots; ++s) {
      const size_t e = static_cast<size_t>(l.experts[t * l.slots + s]);
      const double weight = l.weights[t * l.slots + s];
      for (int64_t i = 0; i < l.f; ++i) {
        double g = 0, u = 0, g_size = 0, u_size = 0;
        for (int64_t k = 0; k < l.d; ++k) {
          const double x = l.x[t * l.d + k];
          const double gp = x * gate[e][static_cast<size_t>(i * l.d + k)],
                       up_ = x * up[e][static_cast<size_t>(i * l.d + k)];
          g += gp, u += up_, g_size += std::fabs(gp), u_size += std::fabs(up_);
        }
        g = std::min<double>(g, kLimit);
        u = std::clamp<double>(u, -kLimit, kLimit);
        const double silu = g / (1 + std::exp(-g)), error = gamma(l.d);
        const double h = std::fabs(silu * u * weight);
        const double dg = error * g_size, du = error * u_size;
        const double dh = weight * (1.1 * dg * (std::fabs(u) + du) + std::fabs(silu) * du) +
                          Gamma(14 + static_cast<int64_t>(2 * std::fabs(g))) * h + 1e-9 * weight * error;
        for (int64_t c = 0; c < l.d; ++c) {
          bound[static_cast<size_t>(c)] += std::fabs(down[e][static_cast<size_t>(c * l.f + i)]) *
                                           (1.01 * dh + gamma(l.f) * (h + dh));
        }
      }
    }
    for (int64_t c = 0; c < l.d; ++c) {
      bounds.push_back(bound[static_cast<size_t>(c)] +
                       Gamma(l.slots + 1) *
                           (std::fabs(l.shared[t * l.d + c]) + std::fabs(want[static_cast<size_t>(t * l.d + c)])));
    }
  }
  return bounds;
}

class CudaExpertsFormats : public ::testing::TestWithParam<QuantCase> {};
INSTANTIATE_TEST_SUITE_P(Formats, CudaExpertsFormats, ::testing::ValuesIn(ExpertQuantCases()),
                         [](const auto& test) { return test.param.name(); });

TEST_P(CudaExpertsFormats, MatchesReference) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  const bool whole = ColumnGranule(GetParam().format) > 1, f32 = GetParam().format == WeightFormat::kF32;
  struct Case {
    int64_t experts, d, f, t, slots;
    bool hot = false;
  };
  for (const Case c : {Case{1, 32, 32, 1, 1},
                       {4, 64, 96, 5, 2},
                       {16, whole ? 64 : 45, whole ? 32 : 29, 33, 3},
                       {8, 160, 224, 1, 6},
                       {3, 96, 64, 41, 2, true},
                       {5, 1056, 544, 2, 3}}) {
    Layer layer(random, GetParam(), c.experts, c.d, c.f, c.t, c.slots, c.hot);
    const std::vector<float> want = Reference(layer, ActivationDtype::kNative);
    const std::vector<float> got = Output(layer, {}, 0, c.t);
    EXPECT_TRUE(WithinBounds(got, want, Bounds(layer, want, f32 ? 0 : 0x1p-17)));
    EXPECT_TRUE(BitEqual(Output(layer, {}, 0, c.t, /*in_place=*/true), got));
    const std::vector<float> exact = Output(layer, {.f32_inputs = true}, 0, c.t);
    EXPECT_TRUE(WithinBounds(exact, want, Bounds(layer, want, 0)));
  }
}

// Little work, so that compute-sanitizer ends soon: one token, a few, and more than one chunk of one expert's.
TEST_P(CudaExpertsFormats, Short) {
  DSV4_GPU_OR_SKIP();
  Random random(8);
  for (const auto& [t, hot] : {std::pair{int64_t{1}, false}, {3, false}, {20, true}}) {
    Layer layer(random, GetParam(), 6, 192, 96, t, 3, hot);
    const std::vector<float> want = Reference(layer, ActivationDtype::kNative);
    EXPECT_TRUE(WithinBounds(Output(layer, {}, 0, t), want,
                             Bounds(layer, want, GetParam().format == WeightFormat::kF32 ? 0 : 0x1p-17)));
  }
}

TEST_P(CudaExpertsFormats, TokensDoNotDependOnTheirBatch) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  Layer layer(random, GetParam(), 7, 256, 160, 40, 3, /*hot=*/true);
  for (const Mode mode :
       {Mode{}, Mode{ActivationDtype::kNative, true}, Mode{ActivationDtype::kFp8}, Mode{ActivationDtype::kNvfp4}}) {
    const std::vector<float> all = Output(layer, mode, 0, layer.t);
    EXPECT_TRUE(BitEqual(Output(layer, mode, 0, layer.t), all));
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {7, 9}, {39, 40}, {3, 20}}) {
      const auto want = std::span(all).subspan(static_cast<size_t>(begin * layer.d),
                                               static_cast<size_t>((end - begin) * layer.d));
      EXPECT_TRUE(BitEqual(Output(layer, mode, begin, end), want)) << begin;
    }
  }
}

// Row pairs are dealt by what they cost: an expert with all tokens beside others with one each, more row pairs than
// blocks. Each is done once: tokens have the bits that they have alone.
TEST(CudaExperts, ChunksOfManyCostsShort) {
  DSV4_GPU_OR_SKIP();
  Random random(14);
  Layer l(random, {WeightFormat::kNvfp4}, 20, 128, 512, 24, 2, /*hot=*/true);
  std::vector<float> alone;
  for (int64_t i = 0; i < l.t; ++i) {
    const std::vector<float> row = Output(l, {}, i, i + 1);
    alone.insert(alone.end(), row.begin(), row.end());
  }
  for (const int64_t t : {4, 7, 16, 20, 24}) {  // 24: the kernel for chunks of up to eight
    EXPECT_TRUE(BitEqual(Output(l, {}, 0, t), std::span(alone).first(static_cast<size_t>(t * l.d)))) << t;
  }
}

// Its items come first then, and are asked for before the choice is known. One or two row pairs a block, or none in
// most.
TEST_P(CudaExpertsFormats, AnExpertKnownBeforehandChangesNoBit) {
  DSV4_GPU_OR_SKIP();
  Random random(12);
  struct Shape {
    int64_t d, f, slots;
  };
  for (const Shape& shape : {Shape{192, 96, 3}, Shape{256, 512, 7}, Shape{256, 2208, 3}, Shape{1088, 2048, 2}}) {
    const int32_t last = 7;
    Layer l(random, GetParam(), last + 1, shape.d, shape.f, 1, shape.slots);
    if (int32_t* end = l.experts.data() + shape.slots, *at = std::find(l.experts.data(), end, last); at != end)
      *at = l.experts[0];
    l.experts[0] = last;
    EXPECT_EQ(Output(l, {}, 0, 1, false, last), Output(l, {}, 0, 1))
        << "D " << shape.d << " F " << shape.f << " slots " << shape.slots;
  }
}

// One token has kernels of its own where the shapes allow it: its bits are those that it has among more.
void OneTokenHasTheBitsOfMore(std::initializer_list<std::array<int64_t, 4>> shapes) {
  for (const QuantCase& kind : ExpertQuantCases()) {
    if (InfoOf(kind.format).bits != 4) continue;
    Random random(13);
    for (const auto& [experts, d, f, slots] : shapes) {
      Layer l(random, kind, experts, d, f, 2, slots);
      const std::vector<float> both = Output(l, {}, 0, 2);
      for (const int64_t token : {0, 1}) {
        const auto want = std::span(both).subspan(static_cast<size_t>(token * d), static_cast<size_t>(d));
        for (const int32_t always : {-1, l.experts[token * slots]}) {
          EXPECT_TRUE(BitEqual(Output(l, {}, token, token + 1, false, always), want))
              << kind.name() << ", D " << d << " F " << f << " known " << always;
        }
      }
    }
  }
}

// The layer's experts in tiles of their rows' format.
std::vector<ExpertMatrices> WithWideTiles(std::vector<ExpertMatrices> matrices) {
  for (ExpertMatrices& m : matrices) {
    for (QuantTensor* w : {&m.gate, &m.up, &m.down}) w->format = FormatOfRows(w->format);
  }
  return matrices;
}

struct TightShape {
  int64_t experts, d, f, t, slots;
  bool hot = false;
};
// One token by its own kernels and by the others; a few; chunks of two blocks of columns; K of less than a tile, rows
// that end within one.
constexpr TightShape kTightShapes[] = {{1, 32, 32, 1, 1},          {3, 1024, 1024, 1, 3}, {2, 4096, 2048, 1, 7},
                                       {8, 160, 224, 1, 6},        {4, 64, 96, 5, 2},     {6, 192, 96, 20, 3, true},
                                       {3, 96, 64, 41, 2, true},   {16, 64, 32, 33, 3},   {5, 1056, 544, 2, 3},
                                       {20, 128, 512, 24, 2, true}};

// Smaller tiles of the same numbers change no bit.
TEST(CudaExperts, TightTilesGiveTheBitsOfWideOnes) {
  DSV4_GPU_OR_SKIP();
  Random random(21);
  for (const QuantCase& kind : TightQuantCases()) {
    for (const TightShape& c : kTightShapes) {
      Layer l(random, kind, c.experts, c.d, c.f, c.t, c.slots, c.hot);
      for (const Mode mode : {Mode{}, Mode{ActivationDtype::kNative, true}, Mode{ActivationDtype::kFp8}}) {
        const std::vector<ExpertMatrices> tight = l.matrices;
        const std::vector<float> got = Output(l, mode, 0, l.t);
        l.matrices = WithWideTiles(tight);
        EXPECT_TRUE(BitEqual(got, Output(l, mode, 0, l.t)))
            << kind.name() << " D " << c.d << " F " << c.f << " T " << c.t;
        l.matrices = tight;
      }
    }
  }
}

// The shared expert's scales are no powers of two: its tiles are wide among tight ones, first in the list of one token.
TEST(CudaExperts, AWideExpertAmongTightOnes) {
  DSV4_GPU_OR_SKIP();
  Random random(22);
  for (const TightShape& c : kTightShapes) {
    Layer l(random, {WeightFormat::kNvfp4Tight}, c.experts + 1, c.d, c.f, c.t, c.slots, c.hot);
    const QuantFixture gate(random, {WeightFormat::kNvfp4}, c.f, c.d), up(random, {WeightFormat::kNvfp4}, c.f, c.d),
        down(random, {WeightFormat::kNvfp4}, c.d, c.f);
    l.matrices.back() = {gate.tensor(), up.tensor(), down.tensor()};
    const auto last = static_cast<int32_t>(c.experts);
    for (int64_t i = 0; i < l.t; ++i) {  // in slot 0 of every token, in no other
      for (int64_t a = 0; a < l.slots; ++a) {
        int32_t& e = l.experts[i * l.slots + a];
        if (a == 0) e = last;
        else if (e == last) e = 0;
      }
    }
    const std::vector<ExpertMatrices> tight = l.matrices;
    for (const bool f32 : {false, true}) {
      for (const int32_t always : {-1, last}) {
        l.matrices = tight;
        const std::vector<float> got = Output(l, {.f32_inputs = f32}, 0, l.t, false, always);
        l.matrices = WithWideTiles(tight);
        EXPECT_TRUE(BitEqual(got, Output(l, {.f32_inputs = f32}, 0, l.t, false, always)))
            << "D " << c.d << " F " << c.f << " T " << c.t << " known " << always;
      }
    }
  }
}

// Flash's shapes, seven row pairs a block; Pro's D and F, with few rows; the smallest; chunks of two tiles.
TEST(CudaExperts, OneTokenHasTheBitsOfMore) {
  DSV4_GPU_OR_SKIP();
  OneTokenHasTheBitsOfMore({{2, 4096, 2048, 7}, {3, 7168, 192, 3}, {2, 320, 3072, 5}, {4, 1024, 2048, 4}});
}

// Little work, so that compute-sanitizer ends soon.
TEST(CudaExperts, OneTokenShort) {
  DSV4_GPU_OR_SKIP();
  OneTokenHasTheBitsOfMore({{3, 1024, 1024, 3}});
}

// A rounded input is RoundActivation's: with float32 products the op differs from the reference by float32 roundings
// and where such a difference moves a hidden value across a rounding boundary: one step of its code in few places.
TEST_P(CudaExpertsFormats, RoundsActivations) {
  DSV4_GPU_OR_SKIP();
  Random random(3);
  Layer layer(random, GetParam(), 5, 288, 160, 11, 2);
  for (const ActivationDtype mode : {ActivationDtype::kFp8, ActivationDtype::kNvfp4}) {
    const std::vector<float> want = Reference(layer, mode);
    const std::vector<float> got = Output(layer, {mode, true}, 0, layer.t);
    EXPECT_TRUE(RelativeRmsWithin(got, want, 1e-3));
    // Not rounding at all is far from it: 2^-4 / sqrt(3) relative a value and more.
    if (layer.matrices[0].gate.quantised()) {
      EXPECT_FALSE(RelativeRmsWithin(Reference(layer, ActivationDtype::kNative), want, 1e-2));
    }
  }
}

// Rounding in the kernels against RoundActivation, bit for bit: identity matrices in both places show the hidden row.
TEST(CudaExperts, RoundsBitForBit) {
  DSV4_GPU_OR_SKIP();
  Random random(4);
  const int64_t n = 320;
  Layer layer(random, {WeightFormat::kF32}, 1, n, n, 3, 1);
  // NVFP4 identity: code 1.0, scale 1.0.
  std::vector<uint8_t> codes(static_cast<size_t>(n * n / 2)), scales(static_cast<size_t>(n * n / 16), 0x38);
  for (int64_t i = 0; i < n; ++i)
    codes[static_cast<size_t>(i * n / 2 + i / 2)] = static_cast<uint8_t>(2 << (i % 2 * 4));
  const QuantTensor identity{
      .format = WeightFormat::kNvfp4, .rows = n, .cols = n, .codes = codes.data(), .block_scale = scales.data()};
  layer.matrices[0] = {identity, identity, identity};
  for (float& v : layer.shared.span()) v = 0.0f;
  for (float& v : layer.weights.span()) v = 1.0f;
  for (const ActivationDtype mode : {ActivationDtype::kFp8, ActivationDtype::kNvfp4}) {
    // h = silu(x) x of rounded x, from the same device functions: with f32 down it is shown unrounded.
    std::vector<float> eye(static_cast<size_t>(n * n));
    for (int64_t i = 0; i < n; ++i) eye[static_cast<size_t>(i * n + i)] = 1.0f;
    layer.matrices[0].down = {
        .format = WeightFormat::kF32, .rows = n, .cols = n, .codes = reinterpret_cast<const uint8_t*>(eye.data())};
    std::vector<float> h = Output(layer, {mode, true}, 0, 3);
    layer.matrices[0].down = identity;
    const std::vector<float> got = Output(layer, {mode, true}, 0, 3);
    const Tensor rows{h.data(), DType::kF32, {3, n}};
    RoundActivation({}, {.x = rows, .y = rows, .mode = mode});
    EXPECT_TRUE(Near(got, h, 0));  // -0 + 0 = 0
    std::vector<float> x = layer.x.values();
    const Tensor x_rows{x.data(), DType::kF32, {3, n}};
    RoundActivation({}, {.x = x_rows, .y = x_rows, .mode = mode});
    layer.matrices[0].down = {
        .format = WeightFormat::kF32, .rows = n, .cols = n, .codes = reinterpret_cast<const uint8_t*>(eye.data())};
    GuardBuffer<float> kept({3, n}, layer.x.values());
    std::copy(x.begin(), x.end(), layer.x.data());
    const std::vector<float> from_rounded = Output(layer, {ActivationDtype::kNative, true}, 0, 3);
    std::copy_n(kept.data(), 3 * n, layer.x.data());
    EXPECT_TRUE(BitEqual(Output(layer, {mode, true}, 0, 3), from_rounded));
  }
}

TEST(CudaExperts, AnExpertTwiceInOneTokenCountsTwice) {
  DSV4_GPU_OR_SKIP();
  Random random(5);
  for (const int64_t t : {1, 2}) {
    Layer layer(random, {WeightFormat::kNvfp4}, 3, 64, 32, t, 2);
    for (int32_t& e : layer.experts.span()) e = 1;
    const std::vector<float> want = Reference(layer, ActivationDtype::kNative);
    EXPECT_TRUE(WithinBounds(Output(layer, {}, 0, t), want, Bounds(layer, want, 0x1p-17)));
  }
}

// Lesson 21: ids out of range stay in bounds; the tokens beside them are right.
TEST(CudaExperts, Lesson21IdsOutOfRange) {
  DSV4_GPU_OR_SKIP();
  Random random(6);
  Layer layer(random, {WeightFormat::kNvfp4}, 4, 64, 32, 6, 2);
  const std::vector<float> want = Output(layer, {}, 0, 6);
  layer.experts[0] = -1, layer.experts[1] = 4, layer.experts[2] = 1 << 30, layer.experts[3] = -(1 << 30);
  const std::vector<float> got = Output(layer, {}, 0, 6);
  EXPECT_TRUE(BitEqual(std::span(got).subspan(2 * 64), std::span(want).subspan(2 * 64)));
  for (const float v : got) EXPECT_TRUE(std::isfinite(v));
  for (const float v : Output(layer, {}, 0, 1)) EXPECT_TRUE(std::isfinite(v));
}

// Lesson 3: every expert's global scale is its own.
TEST(CudaExperts, Lesson3GlobalScaleOfEveryExpert) {
  DSV4_GPU_OR_SKIP();
  Random random(7);
  Layer layer(random, {WeightFormat::kNvfp4}, 2, 64, 32, 1, 1);
  layer.experts[0] = 1;
  for (float& v : layer.shared.span()) v = 0.0f;
  const std::vector<float> once = Output(layer, {}, 0, 1);
  layer.matrices[1].down.global_scale *= 2;
  layer.matrices[0].down.global_scale *= 64;
  const std::vector<float> twice = Output(layer, {}, 0, 1);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_EQ(twice[i], 2 * once[i]);
}

// 0.5 is a subnormal on its way: row n of `down` has the code everywhere and scale byte n, a token one hidden value in
// a column of its own; chunks of one, two and more tokens.
TEST(CudaExperts, EveryNvfp4CodeAndScale) {
  DSV4_GPU_OR_SKIP();
  const int64_t d = 256, f = 16;
  std::vector<uint8_t> eye(static_cast<size_t>(f * d / 2)), ones(static_cast<size_t>(f * d / 16), 0x38),
      codes(static_cast<size_t>(d * f / 2)), scales(256);
  for (int64_t i = 0; i < f; ++i) eye[static_cast<size_t>(i * d / 2 + i / 2)] = static_cast<uint8_t>(2 << (i % 2 * 4));
  for (size_t n = 0; n < 256; ++n) scales[n] = static_cast<uint8_t>(n);
  const QuantTensor identity{
      .format = WeightFormat::kNvfp4, .rows = f, .cols = d, .codes = eye.data(), .block_scale = ones.data()};
  const QuantTensor down{
      .format = WeightFormat::kNvfp4, .rows = d, .cols = f, .codes = codes.data(), .block_scale = scales.data()};
  Random random(13);
  Layer layer(random, {WeightFormat::kNvfp4}, 1, d, 16, 5, 1);
  layer.f = f;
  layer.matrices[0] = {identity, identity, down};
  for (float& v : layer.shared.span()) v = 0.0f;
  for (float& v : layer.weights.span()) v = 1.0f;
  for (int64_t code = 0; code < 16; ++code) {
    std::fill(codes.begin(), codes.end(), static_cast<uint8_t>(code | (code << 4)));
    for (int64_t first = 0; first < f; first += layer.t) {
      for (float& v : layer.x.span()) v = 0.0f;
      for (int64_t t = 0; t < layer.t; ++t) layer.x[t * d + (first + t) % f] = 2.0f;
      const double h = 2.0 / (1.0 + std::exp(-2.0)) * 2.0;
      const std::vector<float> all = Output(layer, {}, 0, layer.t);
      for (int64_t t = 0; t < layer.t; ++t) {
        for (int64_t n = 0; n < d; ++n) {
          const double want = h * WeightValue(down, n, (first + t) % f);
          const float got = all[static_cast<size_t>(t * d + n)];
          // h from expf and two BF16 numbers.
          if (std::isnan(want)) {
            EXPECT_TRUE(std::isnan(got)) << n;
          } else {
            EXPECT_NEAR(got, want, 0x1p-15 * std::fabs(want)) << n << " code " << code << " token " << t;
          }
        }
      }
      for (const int64_t t : {int64_t{1}, int64_t{2}}) {
        const std::vector<float> some = Output(layer, {}, 0, t);
        EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin(),
                               [](float a, float b) {
                                 return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
                                        (std::isnan(a) && std::isnan(b));
                               }))
            << t << " tokens";
      }
    }
  }
}

TEST(CudaExperts, NoTokens) {
  DSV4_GPU_OR_SKIP();
  Random random(8);
  Layer layer(random, {WeightFormat::kNvfp4}, 2, 64, 32, 1, 1);
  EXPECT_TRUE(Output(layer, {}, 0, 0).empty());
}

// On a device an empty `shared` is zeros.
TEST(CudaExperts, WithoutSharedItIsZeros) {
  DSV4_GPU_OR_SKIP();
  Random random(31);
  for (const int64_t t : {1, 9}) {
    Layer layer(random, {WeightFormat::kNvfp4}, 5, 64, 96, t, 3);
    std::fill_n(layer.shared.data(), t * layer.d, 0.0f);
    const std::vector<float> want = Output(layer, {}, 0, t);
    GuardBuffer<float> y({t, layer.d});
    Mirror gpu;
    std::vector<ExpertMatrices> matrices;
    for (const ExpertMatrices& m : layer.matrices)
      matrices.push_back({gpu.Weight(m.gate), gpu.Weight(m.up), gpu.Weight(m.down)});
    ExpertsCuda(gpu.ctx(), {.x = gpu.In(layer.x.tensor()),
                            .experts = gpu.In(layer.experts.tensor()),
                            .weights = gpu.In(layer.weights.tensor()),
                            .matrices = {gpu.Array(matrices), matrices.size()},
                            .first = matrices[0],
                            .limit = kLimit,
                            .hidden = gpu.Temp({t * 3, 2 * layer.f}),
                            .outputs = gpu.Temp({t * 3, layer.d}),
                            .rounded_x = gpu.Temp({t, layer.d}),
                            .y = gpu.Out(y.tensor())});
    gpu.Finish();
    EXPECT_TRUE(BitEqual(y.values(), want));
  }
}

}  // namespace
}  // namespace dsv4::test
