#include "ops/experts/experts.h"

#include "support.h"
#include "support/quant_fixture.h"

namespace dsv4::bench {
namespace {

void Experts(benchmark::State& state) {
  const int64_t t = state.range(0), d = state.range(1), f = state.range(2), num_experts = state.range(3),
                slots = state.range(4);
  test::Random random(1);
  std::vector<test::QuantFixture> weights;
  std::vector<ExpertMatrices> matrices;
  for (int64_t e = 0; e < num_experts; ++e) {
    const test::QuantCase kind{WeightFormat::kNvfp4};
    for (const bool down : {false, false, true}) weights.emplace_back(random, kind, down ? d : f, down ? f : d);
    const size_t last = weights.size() - 1;
    matrices.push_back({weights[last - 2].tensor(), weights[last - 1].tensor(), weights[last].tensor()});
  }
  std::vector<int32_t> chosen;
  for (int64_t i = 0; i < t; ++i) {
    const std::vector<int32_t> order = random.Permutation(num_experts);
    chosen.insert(chosen.end(), order.begin(), order.begin() + slots);
  }
  Buffer x({t, d}), gates({t, slots}), hidden({t * slots, 2 * f}), outputs({t * slots, d}), shared({t, d}), y({t, d});
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::Experts(ctx, {.x = x.tensor(),
                        .experts = {chosen.data(), DType::kI32, {t, slots}},
                        .weights = gates.tensor(),
                        .matrices = matrices,
                        .limit = 10,
                        .hidden = hidden.tensor(),
                        .outputs = outputs.tensor(),
                        .shared = shared.tensor(),
                        .y = y.tensor()});
  }
  Report(state, std::min(num_experts, t * slots) * 3 * d * f * 9 / 16, t * slots * 3 * d * f);
}
BENCHMARK(Experts)
    ->UseRealTime()
    ->ArgNames({"T", "D", "F", "E", "A"})
    ->Args({1, 256, 384, 16, 3})
    ->Args({64, 256, 384, 16, 3})
    ->Args({512, 256, 384, 16, 3})
    ->Args({1, 4096, 2048, 8, 6});

}  // namespace
}  // namespace dsv4::bench
