// Experts of prompts on a Hopper GPU: the kernels of the prompt regimes, for any number of tokens.
#include <cmath>

#include "support/compare.h"
#include "support/experts_fixture.h"
#include "support/input_parts.h"

namespace dsv4::test {
namespace {

// The exact inputs of the down projections and the exact sum of their outputs, one token and choice after the other.
class ExactExperts {
 public:
  // With x and h as `parts` FP16 (NVFP4, FP8) or BF16 terms, in double.
  ExactExperts(ExpertsLayer& l, int parts) : l_(l), parts_(parts) {
    const WeightFormat format = FormatOfRows(l.matrices[0].gate.format);
    if (format == WeightFormat::kBf16) parts_ = 2;  // always
    half_ = format == WeightFormat::kNvfp4 || format == WeightFormat::kFp8Block;
    for (size_t e = 0; e < l.gate.size(); ++e) {
      gates_.push_back(l.gate[e].Decoded()), ups_.push_back(l.up[e].Decoded()), downs_.push_back(l.down[e].Decoded());
    }
  }

  std::vector<float> Output() const {
    std::vector<float> all;
    for (int64_t i = 0; i < l_.t; ++i) {
      std::vector<double> x, y;
      for (const float v : l_.x.row(i)) x.push_back(InParts(v, parts_, half_));
      for (const float v : l_.shared.row(i)) y.push_back(static_cast<double>(v));
      for (int64_t a = 0; a < l_.slots; ++a) {
        const auto e = static_cast<size_t>(l_.experts[i * l_.slots + a]);
        AddDown(e, Hidden(e, x, static_cast<double>(l_.weights[i * l_.slots + a])), y);
      }
      all.insert(all.end(), y.begin(), y.end());
    }
    return all;
  }

 private:
  std::vector<double> Hidden(size_t e, const std::vector<double>& x, double weight) const {
    const double limit = static_cast<double>(kSwigluLimit);
    std::vector<double> h;
    for (size_t j = 0; j < static_cast<size_t>(l_.f); ++j) {
      double g = 0, u = 0;
      for (size_t c = 0; c < x.size(); ++c) {
        g += gates_[e][j * x.size() + c] * x[c];
        u += ups_[e][j * x.size() + c] * x[c];
      }
      g = std::min(g, limit);
      const double exact = g / (1 + std::exp(-g)) * std::clamp(u, -limit, limit) * weight;
      h.push_back(InParts(static_cast<float>(exact), parts_, half_));
    }
    return h;
  }
  void AddDown(size_t e, const std::vector<double>& h, std::vector<double>& y) const {
    for (size_t c = 0; c < y.size(); ++c) {
      for (size_t j = 0; j < h.size(); ++j) y[c] += downs_[e][c * h.size() + j] * h[j];
    }
  }

  ExpertsLayer& l_;
  int parts_;
  bool half_ = false;
  std::vector<std::vector<double>> gates_, ups_, downs_;
};

ExpertsRun OfPrompts(int parts) {
  return {.op = ExpertsOnGpu, .ctx = {.regime = parts == 2 ? Regime::kPrompt : Regime::kLongPrompt}};
}

// The kernels of prompts need Hopper, and support the shapes of these tests.
#define DSV4_HOPPER_OR_SKIP() \
  DSV4_GPU_OR_SKIP();         \
  if (!Gpu()->Context(nullptr, false).gpu.IsHopper()) GTEST_SKIP() << "not a Hopper GPU"

std::vector<float> OfFirst(ExpertsLayer& l, int64_t tokens, const ExpertsRun& run) {
  ExecContext ctx = Gpu()->Context(nullptr, false);
  ctx.regime = run.ctx.regime;
  const auto num_experts = static_cast<int64_t>(l.matrices.size());
  EXPECT_TRUE(ExpertsRunAsPrompt(ctx, l.matrices[0], run.activation, num_experts));
  return OutputOf(l, 0, tokens, run);
}

std::vector<QuantCase> PackedCases() {
  std::vector<QuantCase> cases = ExpertQuantCases();
  std::erase_if(cases, [](const QuantCase& c) { return c.format == WeightFormat::kF32; });
  return cases;
}

// One term: float32 sums (a few 2^-22 of the magnitudes) sometimes move an h across a rounding boundary of BF16: 2^-8
// of that h, for at most 2^-9 of them, which is 2^-12.5 of the output in RMS. Two terms: the error of the sums
// themselves. A step of a tensor core truncates its addends at 2^-23 of the largest, 2^-24 on average and of one sign.
// With K up to 416, 26 steps, a sum is off by at most 26 * 2^-24 of the magnitudes added so far, which in the end are
// about the sum's own size: 1.6e-6. Three products and the fast exponential and quotient of SwiGLU (2^-21 each) raise
// this to less than 5e-6.
double Rms(int parts) { return parts == 1 ? 2e-4 : 1e-5; }

class CudaExpertsPrefill : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Parts, CudaExpertsPrefill, ::testing::Values(1, 2));

TEST_P(CudaExpertsPrefill, OneExpertOneTile) {
  DSV4_HOPPER_OR_SKIP();
  const int parts = GetParam();
  Random random(1);
  for (const QuantCase& kind : PackedCases()) {
    ExpertsLayer l(random, kind, 1, 64, 64, 8, 1);
    const std::vector<float> got = OfFirst(l, l.t, OfPrompts(parts));
    EXPECT_TRUE(RelativeRmsWithin(got, ExactExperts(l, parts).Output(), Rms(parts))) << kind.name();
  }
}

// From x as blocks of FP16 numbers, if x would be rounded to these; other formats and two terms use x itself.
TEST(CudaExpertsPrefillBlocks, GiveTheSameBits) {
  DSV4_HOPPER_OR_SKIP();
  Random random(8);
  ExpertsRun from_blocks = OfPrompts(1);
  from_blocks.from_blocks = true;
  for (const QuantCase& kind : PackedCases()) {
    if (FormatOfRows(kind.format) != WeightFormat::kNvfp4 && kind.format != WeightFormat::kFp8Block) continue;
    for (const int64_t tokens : {int64_t{1}, int64_t{70}, int64_t{203}}) {
      ExpertsLayer l(random, kind, 9, tokens == 70 ? 64 : 448, 96, tokens, 3);
      EXPECT_TRUE(BitEqual(OfFirst(l, l.t, from_blocks), OfFirst(l, l.t, OfPrompts(1))))
          << kind.name() << " T " << tokens;
    }
  }
}

TEST_P(CudaExpertsPrefill, MatchesExactProducts) {
  DSV4_HOPPER_OR_SKIP();
  const int parts = GetParam();
  Random random(2);
  struct Sizes {
    int64_t experts, d, f, tokens, slots;
  };
  for (const QuantCase& kind : PackedCases()) {
    for (const Sizes& s : {Sizes{2, 32, 32, 1, 1}, Sizes{5, 96, 160, 70, 3}, Sizes{12, 416, 96, 130, 6},
                           Sizes{3, 160, 224, 300, 2}, Sizes{40, 64, 96, 90, 6}, Sizes{4, 128, 64, 700, 3}}) {
      ExpertsLayer l(random, kind, s.experts, s.d, s.f, s.tokens, s.slots);
      const std::vector<float> got = OfFirst(l, l.t, OfPrompts(parts));
      EXPECT_TRUE(RelativeRmsWithin(got, ExactExperts(l, parts).Output(), Rms(parts)))
          << kind.name() << " E " << s.experts << " D " << s.d << " F " << s.f << " T " << s.tokens << " A " << s.slots;
    }
  }
}

// Smaller tiles of the same numbers change no bit: every width of a tile, tails of K and of rows.
TEST_P(CudaExpertsPrefill, TightTilesGiveTheBitsOfWideOnes) {
  DSV4_HOPPER_OR_SKIP();
  const int parts = GetParam();
  Random random(9);
  for (const QuantCase& kind : TightQuantCases()) {
    for (const int64_t tokens : {1, 33, 65, 130, 200, 520}) {
      for (const int64_t experts : {1, 5}) {
        ExpertsLayer l(random, kind, experts, 160, 96, tokens, 1);
        const std::vector<float> got = OfFirst(l, l.t, OfPrompts(parts));
        l.matrices = WithWideTiles(l.matrices);
        EXPECT_TRUE(BitEqual(got, OfFirst(l, l.t, OfPrompts(parts))))
            << kind.name() << " E " << experts << " T " << tokens;
      }
    }
  }
}

// Every width of a tile: one expert, 1 .. 520 tokens.
TEST_P(CudaExpertsPrefill, EveryTileWidth) {
  DSV4_HOPPER_OR_SKIP();
  const int parts = GetParam();
  Random random(3);
  for (const QuantCase& kind : PackedCases()) {
    ExpertsLayer l(random, kind, 1, 128, 96, 520, 1);
    const std::vector<float> want = ExactExperts(l, parts).Output(), all = OfFirst(l, l.t, OfPrompts(parts));
    EXPECT_TRUE(RelativeRmsWithin(all, want, Rms(parts))) << kind.name();
    for (const int64_t tokens : {1, 31, 33, 65, 100, 130, 163, 200, 225, 256, 257}) {
      const std::vector<float> head = OfFirst(l, tokens, OfPrompts(parts));
      EXPECT_TRUE(BitEqual(head, std::span(all).first(static_cast<size_t>(tokens * l.d))))
          << kind.name() << " " << tokens;
    }
  }
}

// More sorting blocks than one, experts with no token, the same bits twice, `shared` may be y.
TEST_P(CudaExpertsPrefill, ManyPairs) {
  DSV4_HOPPER_OR_SKIP();
  const int parts = GetParam();
  Random random(4);
  ExpertsLayer l(random, {WeightFormat::kNvfp4}, 70, 64, 32, 1500, 6);
  const ExpertsRun run = OfPrompts(parts);
  const std::vector<float> want = ExactExperts(l, parts).Output(), got = OfFirst(l, l.t, run);
  EXPECT_TRUE(RelativeRmsWithin(got, want, Rms(parts)));
  EXPECT_TRUE(BitEqual(OfFirst(l, l.t, run), got));
  ExpertsRun in_place = run;
  in_place.in_place = true;
  EXPECT_TRUE(BitEqual(OfFirst(l, l.t, in_place), got));
  EXPECT_TRUE(BitEqual(OfFirst(l, 777, run), std::span(got).first(static_cast<size_t>(777 * l.d))));
}

// A tail of K: a NaN in the ring's previous content must not reach the result.
TEST_P(CudaExpertsPrefill, TokensDoNotMix) {
  DSV4_HOPPER_OR_SKIP();
  const int parts = GetParam();
  Random random(5);
  for (const QuantCase& kind : PackedCases()) {
    ExpertsLayer l(random, kind, 6, 96, 160, 200, 3);
    const std::vector<float> clean = OfFirst(l, l.t, OfPrompts(parts));
    l.x[17 * 96 + 5] = std::nanf("");
    const std::vector<float> got = OfFirst(l, l.t, OfPrompts(parts));
    EXPECT_TRUE(BitEqual(std::span(got).first(17 * 96), std::span(clean).first(17 * 96))) << kind.name();
    EXPECT_TRUE(BitEqual(std::span(got).subspan(18 * 96), std::span(clean).subspan(18 * 96))) << kind.name();
    EXPECT_TRUE(std::isnan(got[17 * 96]));
  }
}

}  // namespace
}  // namespace dsv4::test
