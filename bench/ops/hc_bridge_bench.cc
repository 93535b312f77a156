#include "ops/hc_bridge/hc_bridge.h"

#include "support.h"
#include "support/quant_fixture.h"

namespace dsv4::bench {
namespace {

void HcBridge(benchmark::State& state) {
  const int64_t t = state.range(0), h = 4, d = state.range(1);
  test::Random random(1);
  const test::QuantFixture fn(random, {WeightFormat::kF32}, (2 + h) * h, h * d);
  Buffer streams({t, h, d}), y({t, d}), base({(2 + h) * h}), scale({3}), norm({d}), x({t, d});
  Buffer post({t, h}, 0.1f), comb({t, h, h}, 0.1f);  // small, so that the streams stay finite over many calls
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::HcBridge(ctx, {.streams = streams.tensor(),
                         .y = y.tensor(),
                         .fn = fn.tensor(),
                         .base = base.tensor(),
                         .scale = scale.tensor(),
                         .iters = 20,
                         .eps = 1e-6f,
                         .norm_eps = 1e-6f,
                         .norm = norm.tensor(),
                         .x = x.tensor(),
                         .post = post.tensor(),
                         .comb = comb.tensor()});
  }
  Report(state, 2 * t * h * d * 4 + fn.tensor().rows * h * d * 4, t * fn.tensor().rows * h * d);
}
BENCHMARK(HcBridge)->UseRealTime()->ArgNames({"T", "D"})->Args({1, 256})->Args({256, 256})->Args({1, 4096});

}  // namespace
}  // namespace dsv4::bench
