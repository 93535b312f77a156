#include "ops/previous_rows/previous_rows.h"

#include "support.h"

namespace dsv4::bench {
namespace {

void PreviousRows(benchmark::State& state) {
  const int64_t t = state.range(0), width = 4 * 4096, slots = 8;
  Buffer x({t, width}), ring({slots, width});
  const SequenceView sequence{.start = 1000, .begin = 0, .end = t, .fixed = reinterpret_cast<uint8_t*>(ring.data())};
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::PreviousRows(ctx,
                       {.x = x.tensor(), .y = x.tensor(), .sequences = &sequence, .num_sequences = 1, .slots = slots});
  }
  Report(state, t * width * 8);
}
BENCHMARK(PreviousRows)->UseRealTime()->ArgName("T")->Arg(1)->Arg(6)->Arg(512);

}  // namespace
}  // namespace dsv4::bench
