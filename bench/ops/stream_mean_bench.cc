#include "ops/stream_mean/stream_mean.h"

#include "support.h"

namespace dsv4::bench {
namespace {

void StreamMean(benchmark::State& state) {
  const int64_t t = state.range(0), h = 4, d = 4096;
  Buffer streams({t, h, d}), out({t, 3 * d});
  const ExecContext ctx = Context();
  for (auto _ : state) dsv4::StreamMean(ctx, {.streams = streams.tensor(), .out = out.tensor(), .first = d});
  Report(state, t * d * 4 * (h + 1));
}
BENCHMARK(StreamMean)->UseRealTime()->ArgName("T")->Arg(1)->Arg(256);

}  // namespace
}  // namespace dsv4::bench
