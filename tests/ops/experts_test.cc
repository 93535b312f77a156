#include "support/experts_fixture.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "ops/idle_row.h"
#include "ops/kernels.h"
#include "ops/linear/linear.h"
#include "ops/round_activation/round_activation.h"
#include "support/compare.h"
#include "support/devices.h"
#include "support/experts_in_tiles.h"

DSV4_DECLARE_PRODUCT_KERNELS(ExpertsCpu, ExpertsArgs)
DSV4_DECLARE_PRODUCT_KERNELS(LinearCpu, LinearArgs)

namespace dsv4::test {
namespace {

const std::vector<Kernel<ExpertsArgs>> kExpertsKernels = DSV4_PRODUCT_KERNELS(ExpertsCpu);

// The arithmetic of a product's sum (linear_test.cc).
enum class ProductSums { kLanes, kAmx, kGpu, kGpuF32Inputs };

// Calls fn(run, sums) for every kernel of this machine's CPU; on the GPU with inputs of two BF16 terms and of float32.
// Only the CPU rounds activations to integers.
template <typename Fn>
void ForEachRun(On on, const Fn& fn) {
  if (on == On::kGpu) {
    fn(ExpertsRun{.op = ExpertsOnGpu}, ProductSums::kGpu);
    SCOPED_TRACE("float32 inputs");
    return fn(ExpertsRun{.op = ExpertsOnGpu, .ctx = {.f32_inputs = true}}, ProductSums::kGpuF32Inputs);
  }
  ForEachKernel(kExpertsKernels, [&](const auto kernel, bool tiles) {
    fn(ExpertsRun{.op = kernel, .ctx = TwoThreads()}, tiles ? ProductSums::kAmx : ProductSums::kLanes);
  });
}

// Calls fn(kind) for every format that experts may have on the device.
template <typename Fn>
void ForEachExpertFormat(On on, const Fn& fn) {
  for (const QuantCase& kind : on == On::kGpu ? ExpertQuantCases() : AllQuantCases()) {
    SCOPED_TRACE(kind.name());
    fn(kind);
  }
}

std::vector<float> ReferenceOf(ExpertsLayer& l, ActivationDtype activation = ActivationDtype::kNative) {
  return OutputOf(l, {.ctx = Reference(), .activation = activation});
}

// The error of a sum over k relative to its magnitudes, followed by `more` additions. For a CPU as in linear_test.cc. A
// GPU's inputs are two BF16 terms, within 2^-17. Its tensor cores add with at least 24 bits but truncate instead of
// rounding: twice the unit. The additions are 4 steps per tile, a warp's tiles, and eight warps; 24 covers the
// additions after them.
double ProductError(ProductSums sums, const QuantCase& kind, int64_t k, int64_t more) {
  const int64_t chunks = 2 * CeilDiv(k, 128) + 6 + more;
  switch (sums) {
    case ProductSums::kLanes:
      return Gamma(std::min<int64_t>(CeilDiv(k, 8), 32) + chunks);
    case ProductSums::kAmx:
      return Gamma(std::min<int64_t>(CeilDiv(k, 2), 16) + std::min<int64_t>(CeilDiv(k, 32), 8) + chunks);
    case ProductSums::kGpu:
    case ProductSums::kGpuF32Inputs: {
      const bool parts = sums == ProductSums::kGpu && kind.format != WeightFormat::kF32;
      return 2 * Gamma(CeilDiv(k, 16) + 24) + (parts ? 0x1p-17 : 0);
    }
  }
  return 0;
}

// g and u before the clamps, and the sums of their products' magnitudes.
struct GateAndUp {
  double g = 0, u = 0, g_size = 0, u_size = 0;
};
GateAndUp ExactGateAndUp(const float* x, const double* gate, const double* up, int64_t d) {
  GateAndUp exact;
  for (int64_t k = 0; k < d; ++k) {
    const double in = static_cast<double>(x[k]), g = in * gate[k], u = in * up[k];
    exact.g += g, exact.u += u, exact.g_size += std::fabs(g), exact.u_size += std::fabs(u);
  }
  return exact;
}

// The error of h = silu(min(g, L)) clamp(u) w from the errors of g and u (|silu'| <= 1.1, clamps and the weight <= 1 do
// not expand) plus 12 roundings (14 with a GPU's exponential), through the down projection, plus the down projection's
// own error, plus one addition per choice.
std::vector<double> Bounds(ExpertsLayer& l, const QuantCase& kind, const std::vector<float>& want, ProductSums sums) {
  const double limit = static_cast<double>(kSwigluLimit), in_error = ProductError(sums, kind, l.d, 0),
               down_error = ProductError(sums, kind, l.f, l.slots + 1);
  const int64_t roundings = sums == ProductSums::kLanes || sums == ProductSums::kAmx ? 12 : 14;
  std::vector<std::vector<double>> gate, up, down;
  for (size_t e = 0; e < l.matrices.size(); ++e)
    gate.push_back(l.gate[e].Decoded()), up.push_back(l.up[e].Decoded()), down.push_back(l.down[e].Decoded());
  std::vector<double> bounds;
  for (int64_t t = 0; t < l.t; ++t) {
    std::vector<double> bound(static_cast<size_t>(l.d));
    for (int64_t s = 0; s < l.slots; ++s) {
      const size_t e = static_cast<size_t>(l.experts[t * l.slots + s]);
      const double weight = static_cast<double>(l.weights[t * l.slots + s]);
      for (int64_t i = 0; i < l.f; ++i) {
        const GateAndUp exact = ExactGateAndUp(&l.x[t * l.d], &gate[e][static_cast<size_t>(i * l.d)],
                                               &up[e][static_cast<size_t>(i * l.d)], l.d);
        const double g = std::min(exact.g, limit), u = std::clamp(exact.u, -limit, limit);
        const double silu = g / (1 + std::exp(-g)), h = std::fabs(silu * u * weight);
        const double dg = in_error * exact.g_size, du = in_error * exact.u_size;
        const double dh = weight * (1.1 * dg * (std::fabs(u) + du) + std::fabs(silu) * du) +
                          Gamma(roundings + static_cast<int64_t>(2 * std::fabs(g))) * h + 1e-9 * weight * in_error;
        for (int64_t c = 0; c < l.d; ++c) {
          bound[static_cast<size_t>(c)] += std::fabs(down[e][static_cast<size_t>(c * l.f + i)]) *
                                           (1.01 * dh + down_error * (h + dh));
        }
      }
    }
    for (int64_t c = 0; c < l.d; ++c) {
      const double size = static_cast<double>(std::fabs(l.shared[t * l.d + c]) +
                                              std::fabs(want[static_cast<size_t>(t * l.d + c)]));
      bounds.push_back(bound[static_cast<size_t>(c)] + Gamma(l.slots + 1) * size);
    }
  }
  return bounds;
}

struct ExpertsCase {
  int64_t experts, d, f, t, slots;
  bool hot = false;
};

void ExpectTheReference(On on, const QuantCase& kind, Random& random, const ExpertsCase& c) {
  SCOPED_TRACE(StrCat("E ", c.experts, " D ", c.d, " F ", c.f, " T ", c.t));
  ExpertsLayer l(random, kind, c.experts, c.d, c.f, c.t, c.slots, c.hot);
  const std::vector<float> want = ReferenceOf(l);
  ForEachRun(on, [&](ExpertsRun run, ProductSums sums) {
    const std::vector<float> got = OutputOf(l, run);
    EXPECT_TRUE(WithinBounds(got, want, Bounds(l, kind, want, sums)));
    run.in_place = true;
    EXPECT_TRUE(BitEqual(OutputOf(l, run), got));
  });
}

DSV4_DEVICE_TEST(Experts, MatchesReference) {
  ForEachExpertFormat(on, [&](const QuantCase& kind) {
    Random random(1);
    const bool whole = ColumnGranule(kind.format) > 1;
    for (const ExpertsCase& c : {ExpertsCase{1, 32, 32, 1, 1},
                                 {4, 64, 96, 5, 2},
                                 {16, whole ? 64 : 45, whole ? 32 : 29, 33, 3},
                                 {8, 160, 224, 1, 6},
                                 {3, 96, 64, 41, 2, true}})
      ExpectTheReference(on, kind, random, c);
    if (on == On::kGpu) ExpectTheReference(on, kind, random, {5, 1056, 544, 2, 3});
  });
}

// Little work, so that compute-sanitizer is fast: one token, a few, and more than one chunk of one expert.
DSV4_DEVICE_TEST(Experts, FewTokensShort) {
  ForEachExpertFormat(on, [&](const QuantCase& kind) {
    Random random(8);
    for (const ExpertsCase& c : {ExpertsCase{6, 192, 96, 1, 3}, {6, 192, 96, 3, 3}, {6, 192, 96, 20, 3, true}})
      ExpectTheReference(on, kind, random, c);
  });
}

std::vector<ActivationDtype> ActivationsOn(On on) {
  std::vector<ActivationDtype> all{ActivationDtype::kNative, ActivationDtype::kFp8, ActivationDtype::kNvfp4};
  if (on == On::kCpu) {
    for (const auto integer : {ActivationDtype::kInt8, ActivationDtype::kInt16, ActivationDtype::kInt24})
      all.push_back(integer);
  }
  return all;
}

DSV4_DEVICE_TEST(Experts, TokensDoNotDependOnTheirBatch) {
  ForEachExpertFormat(on, [&](const QuantCase& kind) {
    Random random(2);
    // large enough that every thread of a CPU has work (ops/grain.h)
    ExpertsLayer l(random, kind, 7, 256, 160, on == On::kCpu ? 23 : 40, 3, /*hot=*/true);
    std::vector<std::pair<int64_t, int64_t>> parts{{0, 1}, {7, 9}, {3, 20}, {l.t - 1, l.t}};
    for (int64_t t = 0; on == On::kCpu && t < l.t; ++t) parts.emplace_back(t, t + 1);
    for (const ActivationDtype activation : ActivationsOn(on)) {
      ForEachRun(on, [&](ExpertsRun run, ProductSums sums) {
        if (sums == ProductSums::kGpuF32Inputs && activation != ActivationDtype::kNative) return;
        run.activation = activation;
        const std::vector<float> all = OutputOf(l, run);
        for (const ExecContext& ctx : on == On::kGpu ? std::vector<ExecContext>{run.ctx} : ThreadCounts()) {
          run.ctx = ctx;
          EXPECT_TRUE(BitEqual(OutputOf(l, run), all));
          for (const auto& [begin, end] : parts) {
            const auto want = std::span(all).subspan(static_cast<size_t>(begin * l.d),
                                                     static_cast<size_t>((end - begin) * l.d));
            EXPECT_TRUE(BitEqual(OutputOf(l, begin, end, run), want)) << begin << " to " << end;
          }
        }
      });
    }
  });
}

// With rounded activations the op equals its composition bit for bit: with an identity matrix as the down projection
// the output is h, and RoundActivation and Linear do the rest.
TEST(Experts, RoundedActivationsEqualTheComposition) {
  Random random(3);
  const int64_t t = 11, slots = 2, d = 160, f = 160;
  ExpertsLayer layer(random, {WeightFormat::kNvfp4}, 5, d, f, t, slots);
  std::vector<float> identity(static_cast<size_t>(f * f));
  for (int64_t i = 0; i < f; ++i) identity[static_cast<size_t>(i * f + i)] = 1.0f;
  const QuantTensor shows_h{
      .format = WeightFormat::kF32, .rows = f, .cols = f, .codes = reinterpret_cast<const uint8_t*>(identity.data())};
  const std::vector<Kernel<LinearArgs>> linears = DSV4_PRODUCT_KERNELS(LinearCpu);
  for (const ActivationDtype mode : ActivationsOn(On::kCpu)) {
    if (mode == ActivationDtype::kNative) continue;
    const bool in_linear = IsInteger(mode);  // linear rounds its input itself
    size_t next = 0;
    ForEachKernel(kExpertsKernels, [&](const auto run) {
      const std::vector<float> got = OutputOf(layer, {.op = run, .ctx = TwoThreads(), .activation = mode});
      GuardBuffer<float> x({t, d}, layer.x.values()), y({t, d}, layer.shared.values());
      if (!in_linear) RoundActivation({}, {.x = x.tensor(), .y = x.tensor(), .mode = mode});
      for (int64_t i = 0; i < t; ++i) {
        for (int64_t s = 0; s < slots; ++s) {
          const int32_t e = layer.experts[i * slots + s];
          std::vector<ExpertMatrices> matrices = layer.matrices;
          matrices[static_cast<size_t>(e)].down = shows_h;
          GuardBuffer<float> hidden({1, 2 * f}), out({1, f}), zero({1, f}, std::vector<float>(static_cast<size_t>(f)));
          GuardBuffer<float> h({1, f}), o({1, d});
          run({}, {.x = {x.row(i).data(), DType::kF32, {1, d}},
                   .experts = {layer.experts.row(i).data() + s, DType::kI32, {1, 1}},
                   .weights = {layer.weights.row(i).data() + s, DType::kF32, {1, 1}},
                   .matrices = matrices,
                   .limit = kSwigluLimit,
                   .activation = in_linear ? mode : ActivationDtype::kF32,
                   .hidden = hidden.tensor(),
                   .outputs = out.tensor(),
                   .shared = zero.tensor(),
                   .y = h.tensor()});
          if (!in_linear) RoundActivation({}, {.x = h.tensor(), .y = h.tensor(), .mode = mode});
          linears[next].run({}, {.x = h.tensor(),
                                 .parts = {{layer.matrices[static_cast<size_t>(e)].down, o.tensor()}},
                                 .activation = mode});
          for (int64_t c = 0; c < d; ++c) y[i * d + c] += o[c];
        }
      }
      EXPECT_TRUE(BitEqual(got, y.span()));
      ++next;
    });
  }
}

// A rounded input is RoundActivation's. The op differs from the reference by float32 roundings of the products. In a
// few places such a difference moves a hidden value across a rounding boundary: one step of its code.
DSV4_DEVICE_TEST(Experts, RoundsActivations) {
  ForEachExpertFormat(on, [&](const QuantCase& kind) {
    Random random(3);
    ExpertsLayer l(random, kind, 5, 288, 160, 11, 2);
    for (const ActivationDtype mode : {ActivationDtype::kFp8, ActivationDtype::kNvfp4}) {
      const std::vector<float> want = ReferenceOf(l, mode);
      // Without rounding the difference is much larger: 2^-4 / sqrt(3) relative per value and more.
      if (l.matrices[0].gate.quantised()) {
        EXPECT_FALSE(RelativeRmsWithin(ReferenceOf(l), want, 1e-2));
      }
      ForEachRun(on, [&](ExpertsRun run, ProductSums sums) {
        if (sums == ProductSums::kGpu) return;
        run.activation = mode;
        EXPECT_TRUE(RelativeRmsWithin(OutputOf(l, run), want, 1e-3));
      });
    }
  });
}

QuantTensor IdentityOfF32(const std::vector<float>& values, int64_t n) {
  return {.format = WeightFormat::kF32, .rows = n, .cols = n, .codes = reinterpret_cast<const uint8_t*>(values.data())};
}

// The kernels' rounding against RoundActivation, bit for bit: with identity matrices in both places the output is the
// hidden row.
DSV4_DEVICE_TEST(Experts, RoundsBitForBit) {
  Random random(4);
  const int64_t n = 320;
  ExpertsLayer l(random, {WeightFormat::kF32}, 1, n, n, 3, 1);
  // NVFP4 identity: code 1.0, scale 1.0.
  std::vector<uint8_t> codes(static_cast<size_t>(n * n / 2)), scales(static_cast<size_t>(n * n / 16), 0x38);
  std::vector<float> eye(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i) {
    codes[static_cast<size_t>(i * n / 2 + i / 2)] = static_cast<uint8_t>(2 << (i % 2 * 4));
    eye[static_cast<size_t>(i * n + i)] = 1.0f;
  }
  const QuantTensor identity{
      .format = WeightFormat::kNvfp4, .rows = n, .cols = n, .codes = codes.data(), .block_scale = scales.data()};
  const ExpertMatrices rounded{identity, identity, identity}, shows_h{identity, identity, IdentityOfF32(eye, n)};
  for (float& v : l.shared.span()) v = 0.0f;
  for (float& v : l.weights.span()) v = 1.0f;
  const std::vector<float> x = l.x.values();
  for (const ActivationDtype mode : {ActivationDtype::kFp8, ActivationDtype::kNvfp4}) {
    ForEachRun(on, [&](ExpertsRun run, ProductSums sums) {
      if (sums == ProductSums::kGpu) return;
      // h = silu(x) x of rounded x, from the same functions. With a float32 down projection the output is the unrounded
      // h.
      run.activation = mode;
      l.matrices[0] = shows_h;
      const std::vector<float> unrounded = OutputOf(l, run);
      std::vector<float> h = unrounded, rounded_x = x;
      const Tensor h_rows{h.data(), DType::kF32, {3, n}}, x_rows{rounded_x.data(), DType::kF32, {3, n}};
      RoundActivation({}, {.x = h_rows, .y = h_rows, .mode = mode});
      l.matrices[0] = rounded;
      EXPECT_TRUE(Near(OutputOf(l, run), h, 0));  // -0 + 0 = 0
      l.matrices[0] = shows_h;
      RoundActivation({}, {.x = x_rows, .y = x_rows, .mode = mode});
      std::copy(rounded_x.begin(), rounded_x.end(), l.x.data());
      run.activation = ActivationDtype::kNative;
      EXPECT_TRUE(BitEqual(OutputOf(l, run), unrounded));
      std::copy(x.begin(), x.end(), l.x.data());
    });
  }
}

DSV4_DEVICE_TEST(Experts, AnExpertTwiceInOneTokenCountsTwice) {
  Random random(5);
  for (const QuantCase& kind : {QuantCase{WeightFormat::kF32}, QuantCase{WeightFormat::kNvfp4}}) {
    for (const int64_t t : {1, 2}) {
      ExpertsLayer l(random, kind, 3, 64, 32, t, 2);
      for (int32_t& e : l.experts.span()) e = 1;
      const std::vector<float> want = ReferenceOf(l);
      ForEachRun(on, [&](const ExpertsRun& run, ProductSums sums) {
        EXPECT_TRUE(WithinBounds(OutputOf(l, run), want, Bounds(l, kind, want, sums)));
      });
    }
  }
}

// Weights in tensor cores' tiles, as offloaded experts are stored in host memory: the same bits as in rows.
TEST(Experts, WeightsInTilesGiveTheBitsOfRows) {
  for (const QuantCase& kind : ExpertQuantCases()) {
    if (kind.format == WeightFormat::kF32) continue;
    SCOPED_TRACE(kind.name());
    Random random(21);
    const bool whole = ColumnGranule(kind.format) > 1;
    for (const ExpertsCase& c : {ExpertsCase{2, 32, 32, 1, 1},
                                 {4, 64, 96, 5, 2},
                                 {16, whole ? 96 : 45, whole ? 32 : 29, 33, 3},
                                 {8, 160, 224, 1, 6},
                                 {3, 384, 128, 64, 2, true},
                                 {4, 272 - 272 % ColumnGranule(kind.format), 160, 3, 4}}) {
      SCOPED_TRACE(StrCat("E ", c.experts, " D ", c.d, " F ", c.f, " T ", c.t));
      ExpertsLayer l(random, kind, c.experts, c.d, c.f, c.t, c.slots, c.hot);
      const std::vector<ExpertMatrices> rows = l.matrices;
      const std::vector<float> reference = ReferenceOf(l);
      const ExpertsInTiles tiles(rows);
      ForEachRun(On::kCpu, [&](const ExpertsRun& run, ProductSums sums) {
        l.matrices = rows;
        const std::vector<float> want = OutputOf(l, run);
        l.matrices = tiles.matrices();
        const std::vector<float> got = OutputOf(l, run);
        l.matrices = rows;
        if (sums == ProductSums::kLanes) {
          EXPECT_TRUE(BitEqual(got, want));
        } else {  // rows use AMX, tiles do not
          EXPECT_TRUE(WithinBounds(got, reference, Bounds(l, kind, reference, ProductSums::kLanes)));
        }
      });
    }
  }
}

// A choice without an expert gives the same as weight 0. The other rows keep their bits.
DSV4_DEVICE_TEST(Experts, NoExpertAddsNothing) {
  ForEachExpertFormat(on, [&](const QuantCase& kind) {
    Random random(12);
    ExpertsLayer l(random, kind, 6, 192, 96, 14, 3);
    const std::vector<int32_t> experts = l.experts.values();
    const auto each_idle = [&](const auto& change) {
      for (const int64_t row : {2, 9, 10, 13}) {
        for (int64_t slot = 0; slot < l.slots; ++slot) change(row * l.slots + slot);
      }
      change(5 * l.slots + 1);
    };
    each_idle([&](int64_t pair) { l.weights[pair] = 0; });
    ForEachRun(on, [&](const ExpertsRun& run, ProductSums) {
      std::ranges::copy(experts, l.experts.span().begin());
      const std::vector<float> want = OutputOf(l, run);
      each_idle([&](int64_t pair) { l.experts[pair] = kNoExpert; });
      const std::vector<float> got = OutputOf(l, run);
      EXPECT_TRUE(BitEqual(got, want));
      for (int64_t i = 9 * l.d; i < 11 * l.d; ++i) EXPECT_EQ(got[static_cast<size_t>(i)], l.shared[i]) << i;
    });
  });
}

// Every expert's global scale is its own.
DSV4_DEVICE_TEST(Experts, Lesson03GlobalScaleOfEveryExpert) {
  ForEachRun(on, [&](const ExpertsRun& run, ProductSums) {
    Random random(7);
    ExpertsLayer l(random, {WeightFormat::kNvfp4}, 2, 64, 32, 1, 1);
    l.experts[0] = 1;
    for (float& v : l.shared.span()) v = 0.0f;
    const std::vector<float> once = OutputOf(l, run);
    l.matrices[1].down.global_scale *= 2;
    l.matrices[0].down.global_scale *= 64;
    const std::vector<float> twice = OutputOf(l, run);
    for (size_t i = 0; i < once.size(); ++i) EXPECT_EQ(twice[i], 2 * once[i]);
  });
}

bool SameBitsOrNan(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

// `down` has one code everywhere and scale byte n in row n; a token has one hidden value, in its own column.
void ExpectNvfp4Code(ExpertsLayer& l, const ExpertsRun& run, int64_t first) {
  const QuantTensor& down = l.matrices[0].down;
  for (float& v : l.x.span()) v = 0.0f;
  for (int64_t t = 0; t < l.t; ++t) l.x[t * l.d + (first + t) % l.f] = 2.0f;
  const double h = 2.0 / (1.0 + std::exp(-2.0)) * 2.0;
  const std::vector<float> all = OutputOf(l, run);
  for (int64_t t = 0; t < l.t; ++t) {
    for (int64_t n = 0; n < l.d; ++n) {
      const double want = h * WeightValue(down, n, (first + t) % l.f);
      const float got = all[static_cast<size_t>(t * l.d + n)];
      // h is computed with expf, and has two BF16 terms.
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got)) << n;
      } else {
        EXPECT_NEAR(got, want, 0x1p-15 * std::fabs(want)) << "scale " << n << " token " << t;
      }
    }
  }
  for (const int64_t t : {int64_t{1}, int64_t{2}}) {
    const std::vector<float> some = OutputOf(l, 0, t, run);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin(), SameBitsOrNan)) << t << " tokens";
  }
}

// During decoding 0.5 is a subnormal. Chunks of one, two and more tokens.
DSV4_DEVICE_TEST(Experts, EveryNvfp4CodeAndScale) {
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
  ExpertsLayer l(random, {WeightFormat::kNvfp4}, 1, d, f, 5, 1);
  l.matrices[0] = {identity, identity, down};
  for (float& v : l.shared.span()) v = 0.0f;
  for (float& v : l.weights.span()) v = 1.0f;
  ForEachRun(on, [&](const ExpertsRun& run, ProductSums sums) {
    if (sums == ProductSums::kGpuF32Inputs) return;
    for (int64_t code = 0; code < 16; ++code) {
      SCOPED_TRACE(StrCat("code ", code));
      std::fill(codes.begin(), codes.end(), static_cast<uint8_t>(code | (code << 4)));
      for (int64_t first = 0; first < f; first += l.t) ExpectNvfp4Code(l, run, first);
    }
  });
}

DSV4_DEVICE_TEST(Experts, NoTokens) {
  Random random(8);
  ExpertsLayer l(random, {WeightFormat::kNvfp4}, 2, 64, 32, 1, 1);
  ForEachRun(on, [&](const ExpertsRun& run, ProductSums) { EXPECT_TRUE(OutputOf(l, 0, 0, run).empty()); });
}

}  // namespace
}  // namespace dsv4::test
