#include "ops/rms_norm/rms_norm.h"

#include "support.h"

namespace dsv4::bench {
namespace {

void RmsNorm(benchmark::State& state) {
  const int64_t rows = state.range(0), d = state.range(1);
  Buffer x({rows, d}), weight({d}), y({rows, d});
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::RmsNorm(ctx, {.x = x.tensor(), .weight = weight.tensor(), .y = y.tensor(), .eps = 1e-6f});
  }
  Report(state, rows * d * 8);
}
BENCHMARK(RmsNorm)
    ->UseRealTime()
    ->ArgNames({"R", "D"})
    ->Args({1, 256})
    ->Args({8, 512})
    ->Args({2048, 512})
    ->Args({256, 4096});

}  // namespace
}  // namespace dsv4::bench
