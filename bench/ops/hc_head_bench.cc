#include "ops/hc_head/hc_head.h"

#include "support.h"
#include "support/quant_fixture.h"

namespace dsv4::bench {
namespace {

void HcHead(benchmark::State& state) {
  const int64_t r = state.range(0), h = 4, d = state.range(1);
  test::Random random(1);
  const test::QuantFixture fn(random, {WeightFormat::kF32}, h, h * d);
  Buffer streams({r, h, d}), base({h}), scale({1}), out({r, d});
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::HcHead(ctx, {.streams = streams.tensor(),
                       .fn = fn.tensor(),
                       .base = base.tensor(),
                       .scale = scale.tensor(),
                       .eps = 1e-6f,
                       .norm_eps = 1e-6f,
                       .out = out.tensor()});
  }
  Report(state, r * h * d * 4 + h * h * d * 4, r * h * h * d);
}
BENCHMARK(HcHead)->UseRealTime()->ArgNames({"R", "D"})->Args({1, 256})->Args({64, 4096});

}  // namespace
}  // namespace dsv4::bench
