#include "ops/round_kv/round_kv.h"

#include "support.h"

namespace dsv4::bench {
namespace {

void RoundKv(benchmark::State& state) {
  const int64_t t = state.range(0);
  Buffer kv({t, 512});
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::RoundKv(ctx, {.kv = kv.tensor(), .format = KvRowFormat(KvDtype::kFp8, /*head_dim=*/512, /*rope_dim=*/64)});
  }
  Report(state, t * 512 * 8);
}
BENCHMARK(RoundKv)->UseRealTime()->ArgName("T")->Arg(1)->Arg(256);

}  // namespace
}  // namespace dsv4::bench
