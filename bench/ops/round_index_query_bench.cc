#include "ops/round_index_query/round_index_query.h"

#include "support.h"

namespace dsv4::bench {
namespace {

void RoundIndexQuery(benchmark::State& state) {
  const int64_t t = state.range(0), heads = state.range(1);
  Buffer q({t, heads, 128});
  const ExecContext ctx = Context();
  for (auto _ : state) dsv4::RoundIndexQuery(ctx, {.q = q.tensor(), .dtype = IndexDtype::kFp4});
  Report(state, t * heads * 128 * 8);
}
BENCHMARK(RoundIndexQuery)->UseRealTime()->ArgNames({"T", "Ni"})->Args({1, 8})->Args({256, 8})->Args({1, 64});

}  // namespace
}  // namespace dsv4::bench
