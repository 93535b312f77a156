#include "ops/stream_add/stream_add.h"

#include "support.h"

namespace dsv4::bench {
namespace {

void StreamAdd(benchmark::State& state) {
  const int64_t t = state.range(0), h = 4, d = 4096;
  Buffer y({t, d}), streams({t, h, d});
  const ExecContext ctx = Context();
  for (auto _ : state) dsv4::StreamAdd(ctx, {.y = y.tensor(), .streams = streams.tensor()});
  Report(state, t * d * (8 * h + 4));
}
BENCHMARK(StreamAdd)->UseRealTime()->ArgName("T")->Arg(1)->Arg(256);

}  // namespace
}  // namespace dsv4::bench
