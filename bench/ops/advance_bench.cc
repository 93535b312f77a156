#include "ops/advance/advance.h"

#include "support.h"

namespace dsv4::bench {
namespace {

void Advance(benchmark::State& state) {
  const int64_t s = state.range(0);
  std::vector<int32_t> sampled(static_cast<size_t>(s), 7), tokens(static_cast<size_t>(s));
  std::vector<int64_t> positions(static_cast<size_t>(s), 41);
  std::vector<SequenceView> sequences(static_cast<size_t>(s));
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::Advance(ctx, {.sampled = {sampled.data(), DType::kI32, {s}},
                        .tokens = {tokens.data(), DType::kI32, {s}},
                        .positions = {positions.data(), DType::kI64, {s}},
                        .sequences = sequences.data()});
  }
  Report(state, s * 16);
}
BENCHMARK(Advance)->UseRealTime()->Arg(1)->Arg(128);

}  // namespace
}  // namespace dsv4::bench
