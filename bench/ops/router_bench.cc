#include "ops/router/router.h"

#include "support.h"

namespace dsv4::bench {
namespace {

void Router(benchmark::State& state) {
  const int64_t t = state.range(0), num_experts = state.range(1), slots = state.range(2);
  Buffer logits({t, num_experts}), bias({num_experts}), weights({t, slots});
  std::vector<int32_t> experts(static_cast<size_t>(t * slots));
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::Router(ctx, {.logits = logits.tensor(),
                       .bias = bias.tensor(),
                       .scaling_factor = 1.5f,
                       .experts = {experts.data(), DType::kI32, {t, slots}},
                       .weights = weights.tensor()});
  }
  Report(state, t * num_experts * 4);
}
BENCHMARK(Router)->UseRealTime()->ArgNames({"T", "E", "A"})->Args({1, 16, 3})->Args({256, 16, 3})->Args({1, 256, 6});

}  // namespace
}  // namespace dsv4::bench
