#include "ops/round_activation/round_activation.h"

#include "support.h"

namespace dsv4::bench {
namespace {

void RoundActivation(benchmark::State& state) {
  const int64_t t = state.range(0), k = state.range(1);
  const ActivationDtype mode = state.range(2) == 0 ? ActivationDtype::kFp8 : ActivationDtype::kNvfp4;
  Buffer x({t, k}), y({t, k});
  const ExecContext ctx = Context();
  for (auto _ : state) dsv4::RoundActivation(ctx, {.x = x.tensor(), .y = y.tensor(), .mode = mode});
  Report(state, t * k * 8);
}
BENCHMARK(RoundActivation)
    ->UseRealTime()
    ->ArgNames({"T", "K", "nvfp4"})
    ->Args({1, 1024, 0})
    ->Args({1, 1024, 1})
    ->Args({256, 1024, 0})
    ->Args({256, 1024, 1});

}  // namespace
}  // namespace dsv4::bench
