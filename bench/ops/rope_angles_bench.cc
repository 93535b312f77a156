#include "ops/rope_angles/rope_angles.h"

#include "support.h"

namespace dsv4::bench {
namespace {

void RopeAngles(benchmark::State& state) {
  const int64_t t = state.range(0);
  std::vector<int64_t> positions(static_cast<size_t>(t), 1'000'000);
  Buffer frequencies({32}), cos_sin({t, 32, 2});
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::RopeAngles(ctx, {.positions = {positions.data(), DType::kI64, {t}},
                           .frequencies = frequencies.tensor(),
                           .cos_sin = cos_sin.tensor()});
  }
  Report(state, t * 32 * 8);
}
BENCHMARK(RopeAngles)->UseRealTime()->ArgName("T")->Arg(1)->Arg(256);

}  // namespace
}  // namespace dsv4::bench
