#include "ops/hc_pre/hc_pre.h"

#include "support.h"
#include "support/quant_fixture.h"

namespace dsv4::bench {
namespace {

void HcPre(benchmark::State& state) {
  const int64_t t = state.range(0), h = 4, d = state.range(1);
  test::Random random(1);
  const test::QuantFixture fn(random, {WeightFormat::kF32}, (2 + h) * h, h * d);
  Buffer streams({t, h, d}), base({(2 + h) * h}), scale({3}), x({t, d}), post({t, h}), comb({t, h, h});
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::HcPre(ctx, {.streams = streams.tensor(),
                      .fn = fn.tensor(),
                      .base = base.tensor(),
                      .scale = scale.tensor(),
                      .iters = 20,
                      .eps = 1e-6f,
                      .norm_eps = 1e-6f,
                      .x = x.tensor(),
                      .post = post.tensor(),
                      .comb = comb.tensor()});
  }
  Report(state, t * h * d * 4 + fn.tensor().rows * h * d * 4, t * fn.tensor().rows * h * d);
}
BENCHMARK(HcPre)->UseRealTime()->ArgNames({"T", "D"})->Args({1, 256})->Args({256, 256})->Args({1, 4096});

}  // namespace
}  // namespace dsv4::bench
