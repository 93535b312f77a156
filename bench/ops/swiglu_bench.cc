#include "ops/swiglu/swiglu.h"

#include "support.h"

namespace dsv4::bench {
namespace {

void Swiglu(benchmark::State& state) {
  const int64_t t = state.range(0), f = state.range(1);
  Buffer gate({t, f}), up({t, f}), y({t, f});
  const ExecContext ctx = Context();
  for (auto _ : state) dsv4::Swiglu(ctx, {.gate = gate.tensor(), .up = up.tensor(), .limit = 10, .y = y.tensor()});
  Report(state, t * f * 12);
}
BENCHMARK(Swiglu)->UseRealTime()->ArgNames({"T", "F"})->Args({1, 384})->Args({256, 384})->Args({1, 2048});

}  // namespace
}  // namespace dsv4::bench
