#include "ops/rope/rope.h"

#include "support.h"

namespace dsv4::bench {
namespace {

void Rope(benchmark::State& state) {
  const int64_t t = state.range(0), heads = state.range(1);
  Buffer x({t, heads, 512}), cos_sin({t, 32, 2});
  const ExecContext ctx = Context();
  for (auto _ : state) dsv4::Rope(ctx, {.x = x.tensor(), .cos_sin = cos_sin.tensor()});
  Report(state, t * heads * 64 * 8);
}
BENCHMARK(Rope)->UseRealTime()->ArgNames({"T", "N"})->Args({1, 8})->Args({256, 8})->Args({1, 64});

}  // namespace
}  // namespace dsv4::bench
