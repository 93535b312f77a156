#include "ops/experts/experts.h"

#include <cmath>

#include "ops/kernels.h"
#include "ops/linear/linear.h"
#include "ops/round_activation/round_activation.h"
#include "support/compare.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

DSV4_DECLARE_PRODUCT_KERNELS(ExpertsCpu, ExpertsArgs)
DSV4_DECLARE_PRODUCT_KERNELS(LinearCpu, LinearArgs)

namespace dsv4::test {
namespace {

const std::vector<Kernel<ExpertsArgs>> kExpertsKernels = DSV4_PRODUCT_KERNELS(ExpertsCpu);

constexpr float kLimit = 3.0f;  // low, so that both clamps act

// Random experts of shape [F, D] and a batch that chooses among them.
struct Layer {
  Layer(Random& random, QuantCase kind, int64_t num_experts, int64_t d_, int64_t f_, int64_t t_, int64_t slots_)
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
      const std::vector<int32_t> order = random.Permutation(num_experts - (num_experts > slots ? 1 : 0));
      std::copy_n(order.begin(), slots, experts.row(i).begin());  // the last expert is never chosen
    }
  }

  int64_t d, f, t, slots;
  GuardBuffer<float> x;
  GuardBuffer<int32_t> experts;
  GuardBuffer<float> weights, shared;
  std::vector<QuantFixture> gate, up, down;
  std::vector<ExpertMatrices> matrices;
};

using ExpertsFn = void (*)(const ExecContext&, const ExpertsArgs&);

// Output for tokens [begin, end) of the layer's batch.
std::vector<float> Output(const ExpertsFn run, const ExecContext& ctx, Layer& l, ActivationDtype activation,
                          int64_t begin, int64_t end, bool in_place = false) {
  const int64_t t = end - begin;
  GuardBuffer<float> hidden({t * l.slots, 2 * l.f}), outputs({t * l.slots, l.d}), rounded({t, l.d}),
      y({t, l.d});
  const auto rows = [&](auto& buffer, DType dtype) {
    return Tensor{buffer.row(begin).data(), dtype, {t, buffer.tensor().dim(1)}};
  };
  if (in_place) std::copy_n(l.shared.row(begin).data(), t * l.d, y.data());
  run(ctx, {.x = rows(l.x, DType::kF32),
            .experts = rows(l.experts, DType::kI32),
            .weights = rows(l.weights, DType::kF32),
            .matrices = l.matrices,
            .limit = kLimit,
            .activation = activation,
            .hidden = hidden.tensor(),
            .outputs = outputs.tensor(),
            .rounded_x = rounded.tensor(),
            .shared = in_place ? y.tensor() : rows(l.shared, DType::kF32),
            .y = y.tensor()});
  return y.values();
}

void ReferenceExperts(const ExecContext&, const ExpertsArgs& a) { Experts(Reference(), a); }

// The error of h = silu(min(g, L)) clamp(u) w from those of g and u (gamma_n sum |x| |w| each, as in linear_test.cc;
// |silu'| <= 1.1, clamps and the weight <= 1 do not expand) plus 12 roundings, through the down projection, plus the
// down projection's own, plus one addition a slot.
std::vector<double> Bounds(Layer& l, const std::vector<float>& want, bool tiles) {
  const auto roundings = [tiles](int64_t k) {  // linear_test.cc
    const int64_t in_chunk = tiles ? std::min<int64_t>(CeilDiv(k, 2), 16) + std::min<int64_t>(CeilDiv(k, 32), 8)
                                   : std::min<int64_t>(CeilDiv(k, 8), 32);
    return in_chunk + 2 * CeilDiv(k, 128) + 6;
  };
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
          g += x * gate[e][static_cast<size_t>(i * l.d + k)];
          u += x * up[e][static_cast<size_t>(i * l.d + k)];
          g_size += std::fabs(x * gate[e][static_cast<size_t>(i * l.d + k)]);
          u_size += std::fabs(x * up[e][static_cast<size_t>(i * l.d + k)]);
        }
        g = std::min<double>(g, kLimit);
        u = std::clamp<double>(u, -kLimit, kLimit);
        const double silu = g / (1 + std::exp(-g)), gamma = Gamma(roundings(l.d));
        const double h = std::fabs(silu * u * weight);
        const double dh = weight * gamma * (1.1 * g_size * std::fabs(u) + std::fabs(silu) * u_size) +
                          Gamma(12 + static_cast<int64_t>(2 * std::fabs(g))) * h + 1e-9 * weight * gamma;
        for (int64_t c = 0; c < l.d; ++c) {
          bound[static_cast<size_t>(c)] += std::fabs(down[e][static_cast<size_t>(c * l.f + i)]) *
                                           (1.01 * dh + Gamma(roundings(l.f) + l.slots + 1) * h);
        }
      }
    }
    for (int64_t c = 0; c < l.d; ++c) {
      bounds.push_back(bound[static_cast<size_t>(c)] +
                       Gamma(l.slots + 1) * (std::fabs(l.shared[t * l.d + c]) +
                                             std::fabs(want[static_cast<size_t>(t * l.d + c)])));
    }
  }
  return bounds;
}

class ExpertsFormats : public ::testing::TestWithParam<QuantCase> {};
INSTANTIATE_TEST_SUITE_P(Formats, ExpertsFormats, ::testing::ValuesIn(AllQuantCases()),
                         [](const auto& test) { return test.param.name(); });

TEST_P(ExpertsFormats, MatchesReference) {
  Random random(1);
  const bool whole = ColumnGranule(GetParam().format) > 1;
  struct Case {
    int64_t experts, d, f, t, slots;
  };
  for (const Case c :
       {Case{1, 32, 32, 1, 1}, {4, 64, 96, 5, 2}, {16, whole ? 64 : 45, whole ? 32 : 29, 33, 3}}) {
    Layer layer(random, GetParam(), c.experts, c.d, c.f, c.t, c.slots);
    const std::vector<float> want = Output(ReferenceExperts, {}, layer, ActivationDtype::kNative, 0, c.t);
    const std::vector<double> plain_bounds = Bounds(layer, want, /*tiles=*/false),
                              tile_bounds = Bounds(layer, want, /*tiles=*/true);
    ForEachKernel(kExpertsKernels, [&](const auto run, bool tiles) {
      const std::vector<double>& bounds = tiles ? tile_bounds : plain_bounds;
      const std::vector<float> got = Output(run, TwoThreads(), layer, ActivationDtype::kNative, 0, c.t);
      EXPECT_TRUE(WithinBounds(got, want, bounds));
      EXPECT_TRUE(BitEqual(
          Output(run, TwoThreads(), layer, ActivationDtype::kNative, 0, c.t, /*in_place=*/true), got));
    });
  }
}

TEST_P(ExpertsFormats, TokensDoNotDependOnTheirBatch) {
  Random random(2);
  Layer layer(random, GetParam(), 7, 256, 160, 23, 3);  // large enough that every thread gets a part (ops/grain.h)
  for (const ActivationDtype activation : {ActivationDtype::kNative, ActivationDtype::kFp8, ActivationDtype::kNvfp4,
                                           ActivationDtype::kInt8, ActivationDtype::kInt16, ActivationDtype::kInt24}) {
    ForEachKernel(kExpertsKernels, [&](const auto run) {
      const std::vector<float> all = Output(run, {}, layer, activation, 0, layer.t);
      for (const ExecContext& ctx : ThreadCounts()) {
        EXPECT_TRUE(BitEqual(Output(run, ctx, layer, activation, 0, layer.t), all));
        for (int64_t t = 0; t < layer.t; ++t) {
          const auto want = std::span(all).subspan(static_cast<size_t>(t * layer.d),
                                                   static_cast<size_t>(layer.d));
          EXPECT_TRUE(BitEqual(Output(run, ctx, layer, activation, t, t + 1), want)) << t;
        }
      }
    });
  }
}

// With rounded activations the op equals its composition bit for bit: an identity matrix as the down projection shows
// h, RoundActivation and Linear do the rest.
TEST(Experts, RoundedActivationsEqualTheComposition) {
  Random random(3);
  const int64_t t = 11, slots = 2, d = 160, f = 160;
  Layer layer(random, {WeightFormat::kNvfp4}, 5, d, f, t, slots);
  std::vector<float> identity(static_cast<size_t>(f * f));
  for (int64_t i = 0; i < f; ++i) identity[static_cast<size_t>(i * f + i)] = 1.0f;
  const QuantTensor shows_h{.format = WeightFormat::kF32,
                            .rows = f,
                            .cols = f,
                            .codes = reinterpret_cast<const uint8_t*>(identity.data())};
  const std::vector<Kernel<LinearArgs>> linears = DSV4_PRODUCT_KERNELS(LinearCpu);
  for (const ActivationDtype mode : {ActivationDtype::kFp8, ActivationDtype::kNvfp4, ActivationDtype::kInt8,
                                     ActivationDtype::kInt16, ActivationDtype::kInt24}) {
    const bool in_linear = IsInteger(mode);  // linear rounds its input itself
    size_t next = 0;
    ForEachKernel(kExpertsKernels, [&](const auto run) {
      const std::vector<float> got = Output(run, TwoThreads(), layer, mode, 0, t);
      GuardBuffer<float> x({t, d}, layer.x.values()), y({t, d}, layer.shared.values());
      if (!in_linear) RoundActivation({}, {.x = x.tensor(), .y = x.tensor(), .mode = mode});
      for (int64_t i = 0; i < t; ++i) {
        for (int64_t s = 0; s < slots; ++s) {
          const int32_t e = layer.experts[i * slots + s];
          std::vector<ExpertMatrices> matrices = layer.matrices;
          matrices[static_cast<size_t>(e)].down = shows_h;
          GuardBuffer<float> hidden({1, 2 * f}), out({1, f}),
              zero({1, f}, std::vector<float>(static_cast<size_t>(f)));
          GuardBuffer<float> h({1, f}), o({1, d});
          run({}, {.x = {x.row(i).data(), DType::kF32, {1, d}},
                   .experts = {layer.experts.row(i).data() + s, DType::kI32, {1, 1}},
                   .weights = {layer.weights.row(i).data() + s, DType::kF32, {1, 1}},
                   .matrices = matrices,
                   .limit = kLimit,
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

TEST(Experts, AnExpertTwiceInOneTokenCountsTwice) {
  Random random(4);
  Layer layer(random, {WeightFormat::kF32}, 3, 24, 16, 2, 2);
  for (int32_t& e : layer.experts.span()) e = 1;
  const std::vector<float> want = Output(ReferenceExperts, {}, layer, ActivationDtype::kNative, 0, 2);
  ForEachKernel(kExpertsKernels, [&](const auto run) {
    EXPECT_TRUE(WithinBounds(Output(run, {}, layer, ActivationDtype::kNative, 0, 2), want,
                             Bounds(layer, want, /*tiles=*/false)));
  });
}

}  // namespace
}  // namespace dsv4::test
