#include "ops/experts/experts_sm90.h"

#include <algorithm>
#include <cmath>

#include "support/activation_blocks.h"
#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/input_parts.h"
#include "support/quant_fixture.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

constexpr float kLimit = 3.0f;  // low, so that both clamps act

// Random experts and a batch that chooses among them; the last expert is never chosen when there are enough others.
struct Layer {
  Layer(Random& random, QuantCase kind, int64_t num_experts, int64_t d_, int64_t f_, int64_t t_, int64_t slots_)
      : d(d_), f(f_), t(t_), slots(slots_), x({t, d}, random.Normals(t * d, 0.2f)), experts({t, slots}),
        weights({t, slots}, random.Uniforms(t * slots, 0, 1)), shared({t, d}, random.Normals(t * d)) {
    for (int64_t e = 0; e < num_experts; ++e) {
      gate.emplace_back(random, kind, f, d, QuantOptions{.unaligned = false});
      up.emplace_back(random, kind, f, d, QuantOptions{.unaligned = false});
      down.emplace_back(random, kind, d, f, QuantOptions{.unaligned = false});
    }
    for (int64_t i = 0; i < t; ++i) {
      const std::vector<int32_t> order = random.Permutation(num_experts - (num_experts > slots ? 1 : 0));
      std::copy_n(order.begin(), slots, experts.row(i).begin());
    }
  }

  // What the contract says with x and h as one or two FP16 (NVFP4, FP8) or BF16 numbers, in double.
  std::vector<float> Want(int parts) {
    const WeightFormat format = FormatOfRows(gate[0].tensor().format);
    if (format == WeightFormat::kBf16) parts = 2;  // always
    const bool half = format == WeightFormat::kNvfp4 || format == WeightFormat::kFp8Block;
    std::vector<std::vector<double>> gates, ups, downs;
    for (size_t e = 0; e < gate.size(); ++e) {
      gates.push_back(gate[e].Decoded()), ups.push_back(up[e].Decoded()), downs.push_back(down[e].Decoded());
    }
    std::vector<float> want;
    std::vector<double> row(static_cast<size_t>(d)), h(static_cast<size_t>(f)), y(static_cast<size_t>(d));
    for (int64_t i = 0; i < t; ++i) {
      for (int64_t c = 0; c < d; ++c) row[static_cast<size_t>(c)] = InParts(x[i * d + c], parts, half);
      for (int64_t c = 0; c < d; ++c) y[static_cast<size_t>(c)] = static_cast<double>(shared[i * d + c]);
      for (int64_t a = 0; a < slots; ++a) {
        const auto e = static_cast<size_t>(experts[i * slots + a]);
        const double limit = static_cast<double>(kLimit), weight = static_cast<double>(weights[i * slots + a]);
        for (int64_t j = 0; j < f; ++j) {
          double g = 0, u = 0;
          for (int64_t c = 0; c < d; ++c) {
            g += gates[e][static_cast<size_t>(j * d + c)] * row[static_cast<size_t>(c)];
            u += ups[e][static_cast<size_t>(j * d + c)] * row[static_cast<size_t>(c)];
          }
          g = std::min(g, limit);
          h[static_cast<size_t>(j)] = InParts(
              static_cast<float>(g / (1 + std::exp(-g)) * std::clamp(u, -limit, limit) * weight), parts, half);
        }
        for (int64_t c = 0; c < d; ++c) {
          for (int64_t j = 0; j < f; ++j)
            y[static_cast<size_t>(c)] += downs[e][static_cast<size_t>(c * f + j)] * h[static_cast<size_t>(j)];
        }
      }
      want.insert(want.end(), y.begin(), y.end());
    }
    return want;
  }

  int64_t d, f, t, slots;
  GuardBuffer<float> x;
  GuardBuffer<int32_t> experts;
  GuardBuffer<float> weights, shared;
  std::vector<QuantFixture> gate, up, down;
};

// Output for the first `tokens`, from x as blocks if `blocks`. Empty: not supported here.
std::vector<float> OnGpu(Layer& l, int parts, int64_t tokens, bool in_place = false, bool blocks = false,
                         bool wide = false) {
  Mirror gpu;
  const auto rows = static_cast<size_t>(tokens), columns = static_cast<size_t>(l.d);
  GuardBuffer<uint8_t> x_blocks(
      {blocks ? static_cast<int64_t>(ActivationBlocksBytes(rows, columns)) : 0},
      blocks ? AsBlocks(l.x.span().first(rows * columns), rows, columns) : std::vector<uint8_t>{});
  std::vector<ExpertMatrices> matrices;
  const auto weight = [&](const QuantFixture& fixture) {
    QuantTensor w = fixture.tensor();
    if (wide) w.format = FormatOfRows(w.format);
    return gpu.Weight(w);
  };
  for (size_t e = 0; e < l.gate.size(); ++e)
    matrices.push_back({weight(l.gate[e]), weight(l.up[e]), weight(l.down[e])});
  GuardBuffer<float> y({tokens, l.d});
  if (in_place) std::copy_n(l.shared.data(), tokens * l.d, y.data());
  const Tensor device_y = gpu.Out(y.tensor());
  const ExpertsArgs a{.x = blocks ? gpu.Temp({tokens, l.d}) : gpu.In(l.x.tensor().Head(tokens)),
                      .experts = gpu.In(l.experts.tensor().Head(tokens)),
                      .weights = gpu.In(l.weights.tensor().Head(tokens)),
                      .matrices = {gpu.Array(matrices), matrices.size()},
                      .first = matrices[0],
                      .limit = kLimit,
                      .hidden = gpu.Temp({tokens * l.slots, 2 * l.f}),
                      .outputs = gpu.Temp({tokens * l.slots, l.d}),
                      .rounded_x = {},
                      .shared = in_place ? device_y : gpu.In(l.shared.tensor().Head(tokens)),
                      .y = device_y,
                      .x_blocks = blocks ? static_cast<const uint8_t*>(gpu.In(x_blocks.tensor()).data) : nullptr};
  if (!gpu.ctx().gpu.IsHopper()) return {};
  gpu.ctx().regime = parts == 2 ? Regime::kPrompt : Regime::kLongPrompt;
  ExpertsPrefillSm90(gpu.ctx(), a);
  gpu.Finish();
  return {y.span().begin(), y.span().end()};
}

std::vector<QuantCase> PackedCases() {
  std::vector<QuantCase> cases = ExpertQuantCases();
  std::erase_if(cases, [](const QuantCase& c) { return c.format == WeightFormat::kF32; });
  return cases;
}

// One part: float32 sums (a few 2^-22 of the magnitudes) now and then put an h on the other side of a rounding boundary
// of BF16: 2^-8 of that h, for at most 2^-9 of them: 2^-12.5 of the output in RMS. Two parts: the sums themselves. A
// step of a tensor core cuts its addends at 2^-23 of the largest, 2^-24 on average and of one sign: with K up to 416,
// 26 steps, a sum is off by at most 26 * 2^-24 of the magnitudes' part that has been added, which is about the sum's
// own size in the end:
// 1.6e-6; three products and the fast exponential and quotient of SwiGLU (2^-21 each) make less than 5e-6 of it.
double Rms(int parts) { return parts == 1 ? 2e-4 : 1e-5; }

class CudaExpertsPrefill : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Parts, CudaExpertsPrefill, ::testing::Values(1, 2));

TEST_P(CudaExpertsPrefill, OneExpertOneTile) {
  DSV4_GPU_OR_SKIP();
  const int parts = GetParam();
  Random random(1);
  for (const QuantCase& kind : PackedCases()) {
    Layer l(random, kind, 1, 64, 64, 8, 1);
    const std::vector<float> got = OnGpu(l, parts, l.t);
    if (got.empty()) GTEST_SKIP() << "not a Hopper GPU";
    EXPECT_TRUE(RelativeRmsWithin(got, l.Want(parts), Rms(parts))) << kind.name();
  }
}

// From x as blocks of FP16 numbers, where x would be rounded to these; other formats and two parts take x itself.
TEST(CudaExpertsPrefillBlocks, GiveTheSameBits) {
  DSV4_GPU_OR_SKIP();
  Random random(8);
  for (const QuantCase& kind : PackedCases()) {
    if (FormatOfRows(kind.format) != WeightFormat::kNvfp4 && kind.format != WeightFormat::kFp8Block) continue;
    for (const int64_t tokens : {int64_t{1}, int64_t{70}, int64_t{203}}) {
      Layer l(random, kind, 9, tokens == 70 ? 64 : 448, 96, tokens, 3);
      const std::vector<float> want = OnGpu(l, 1, l.t);
      if (want.empty()) GTEST_SKIP() << "not a Hopper GPU";
      EXPECT_TRUE(BitEqual(OnGpu(l, 1, l.t, false, true), want)) << kind.name() << " T " << tokens;
    }
  }
}

TEST_P(CudaExpertsPrefill, MatchesExactProducts) {
  DSV4_GPU_OR_SKIP();
  const int parts = GetParam();
  Random random(2);
  struct Sizes {
    int64_t experts, d, f, tokens, slots;
  };
  for (const QuantCase& kind : PackedCases()) {
    for (const Sizes& s : {Sizes{2, 32, 32, 1, 1}, Sizes{5, 96, 160, 70, 3}, Sizes{12, 416, 96, 130, 6},
                           Sizes{3, 160, 224, 300, 2}, Sizes{40, 64, 96, 90, 6}, Sizes{4, 128, 64, 700, 3}}) {
      Layer l(random, kind, s.experts, s.d, s.f, s.tokens, s.slots);
      const std::vector<float> got = OnGpu(l, parts, l.t);
      if (got.empty()) GTEST_SKIP() << "not a Hopper GPU";
      EXPECT_TRUE(RelativeRmsWithin(got, l.Want(parts), Rms(parts)))
          << kind.name() << " E " << s.experts << " D " << s.d << " F " << s.f << " T " << s.tokens << " A " << s.slots;
    }
  }
}

// Smaller tiles of the same numbers change no bit: every width of a tile, tails of K and of rows.
TEST_P(CudaExpertsPrefill, TightTilesGiveTheBitsOfWideOnes) {
  DSV4_GPU_OR_SKIP();
  const int parts = GetParam();
  Random random(9);
  for (const QuantCase& kind : TightQuantCases()) {
    for (const int64_t tokens : {1, 33, 65, 130, 200, 520}) {
      for (const int64_t experts : {1, 5}) {
        Layer l(random, kind, experts, 160, 96, tokens, 1);
        const std::vector<float> got = OnGpu(l, parts, l.t);
        if (got.empty()) GTEST_SKIP() << "not a Hopper GPU";
        EXPECT_TRUE(BitEqual(got, OnGpu(l, parts, l.t, false, false, /*wide=*/true)))
            << kind.name() << " E " << experts << " T " << tokens;
      }
    }
  }
}

// Every width of a tile: one expert, 1 .. 520 tokens.
TEST_P(CudaExpertsPrefill, EveryTileWidth) {
  DSV4_GPU_OR_SKIP();
  const int parts = GetParam();
  Random random(3);
  for (const QuantCase& kind : PackedCases()) {
    Layer l(random, kind, 1, 128, 96, 520, 1);
    const std::vector<float> want = l.Want(parts), all = OnGpu(l, parts, l.t);
    if (all.empty()) GTEST_SKIP() << "not a Hopper GPU";
    EXPECT_TRUE(RelativeRmsWithin(all, want, Rms(parts))) << kind.name();
    for (const int64_t tokens : {1, 31, 33, 65, 100, 130, 163, 200, 225, 256, 257}) {
      const std::vector<float> head = OnGpu(l, parts, tokens);
      EXPECT_TRUE(BitEqual(head, std::span(all).first(static_cast<size_t>(tokens * l.d))))
          << kind.name() << " " << tokens;
    }
  }
}

// More sorting blocks than one, experts with no token, the same bits twice, `shared` may be y.
TEST_P(CudaExpertsPrefill, ManyPairs) {
  DSV4_GPU_OR_SKIP();
  const int parts = GetParam();
  Random random(4);
  Layer l(random, {WeightFormat::kNvfp4}, 70, 64, 32, 1500, 6);
  const std::vector<float> want = l.Want(parts), got = OnGpu(l, parts, l.t);
  if (got.empty()) GTEST_SKIP() << "not a Hopper GPU";
  EXPECT_TRUE(RelativeRmsWithin(got, want, Rms(parts)));
  EXPECT_TRUE(BitEqual(OnGpu(l, parts, l.t), got));
  EXPECT_TRUE(BitEqual(OnGpu(l, parts, l.t, /*in_place=*/true), got));
  EXPECT_TRUE(BitEqual(OnGpu(l, parts, 777), std::span(got).first(static_cast<size_t>(777 * l.d))));
}

// A tail of K behind which a NaN of the ring's former content must not reach.
TEST_P(CudaExpertsPrefill, TokensDoNotMix) {
  DSV4_GPU_OR_SKIP();
  const int parts = GetParam();
  Random random(5);
  for (const QuantCase& kind : PackedCases()) {
    Layer l(random, kind, 6, 96, 160, 200, 3);
    const std::vector<float> clean = OnGpu(l, parts, l.t);
    if (clean.empty()) GTEST_SKIP() << "not a Hopper GPU";
    l.x[17 * 96 + 5] = std::nanf("");
    const std::vector<float> got = OnGpu(l, parts, l.t);
    EXPECT_TRUE(BitEqual(std::span(got).first(17 * 96), std::span(clean).first(17 * 96))) << kind.name();
    EXPECT_TRUE(BitEqual(std::span(got).subspan(18 * 96), std::span(clean).subspan(18 * 96))) << kind.name();
    EXPECT_TRUE(std::isnan(got[17 * 96]));
  }
}

}  // namespace
}  // namespace dsv4::test
