#include "ops/gather_rows/gather_rows.h"

#include "support.h"

namespace dsv4::bench {
namespace {

void GatherRows(benchmark::State& state) {
  const int64_t t = 256, r = state.range(0), d = 1024;
  Buffer x({t, d}), out({r, d});
  std::vector<int32_t> rows(static_cast<size_t>(r), 17);
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::GatherRows(ctx, {.x = x.tensor(), .rows = {rows.data(), DType::kI32, {r}}, .out = out.tensor()});
  }
  Report(state, r * d * 8);
}
BENCHMARK(GatherRows)->UseRealTime()->ArgName("R")->Arg(1)->Arg(64);

}  // namespace
}  // namespace dsv4::bench
