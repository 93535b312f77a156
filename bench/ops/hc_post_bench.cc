#include "ops/hc_post/hc_post.h"

#include "support.h"

namespace dsv4::bench {
namespace {

void HcPost(benchmark::State& state) {
  const int64_t t = state.range(0), h = 4, d = state.range(1);
  Buffer y({t, d}), post({t, h}), comb({t, h, h}, 0.25f), streams({t, h, d});
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::HcPost(ctx, {.y = y.tensor(), .post = post.tensor(), .comb = comb.tensor(), .streams = streams.tensor()});
  }
  Report(state, t * d * (8 * h + 4), t * d * h * (h + 1));
}
BENCHMARK(HcPost)->UseRealTime()->ArgNames({"T", "D"})->Args({1, 256})->Args({256, 256})->Args({1, 4096});

}  // namespace
}  // namespace dsv4::bench
