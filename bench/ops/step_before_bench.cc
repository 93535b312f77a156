#include "ops/step_before/step_before.h"

#include "support.h"

namespace dsv4::bench {
namespace {

void StepBefore(benchmark::State& state) {
  const int64_t s = state.range(0);
  std::vector<int64_t> positions(static_cast<size_t>(s), 41), before(positions);
  std::vector<SequenceView> sequences(static_cast<size_t>(s)), views(sequences);
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::StepBefore(ctx, {.positions = {positions.data(), DType::kI64, {s}},
                           .sequences = sequences.data(),
                           .num_sequences = s,
                           .positions_before = {before.data(), DType::kI64, {s}},
                           .before = views.data()});
  }
  Report(state, s * 16);
}
BENCHMARK(StepBefore)->UseRealTime()->Arg(1)->Arg(128);

}  // namespace
}  // namespace dsv4::bench
