#include "ops/index_topk/index_topk.h"

#include "support.h"
#include "support/cache_fixture.h"

namespace dsv4::bench {
namespace {

void IndexTopk(benchmark::State& state) {
  const int64_t tokens = state.range(0), cached = state.range(1), heads = state.range(2), k = state.range(3);
  test::CacheFixture cache(test::FullKvSpec({4}), {{.cached = cached, .tokens = tokens}});
  test::Random random(1);
  cache.FillRandom(random);
  Buffer q({tokens, heads, 128}), weights({tokens, heads});
  std::vector<int32_t> picks(static_cast<size_t>(tokens * k));
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::IndexTopk(ctx, {.q = q.tensor(),
                          .weights = weights.tensor(),
                          .cache = cache.View(0),
                          .topk_idxs = {picks.data(), DType::kI32, {tokens, k}}});
  }
  const int64_t rows = tokens * (cached + tokens / 2) / 4;
  Report(state, rows * 68, rows * heads * 128);
}
BENCHMARK(IndexTopk)
    ->UseRealTime()
    ->ArgNames({"T", "cached", "Ni", "K"})
    ->Args({1, 2000, 8, 64})
    ->Args({128, 2000, 8, 64})
    ->Args({1, 65536, 64, 512})
    ->Args({32, 8192, 64, 512});

}  // namespace
}  // namespace dsv4::bench
