#include "ops/sparse_attention/sparse_attention.h"

#include <numeric>

#include "support.h"
#include "support/cache_fixture.h"

namespace dsv4::bench {
namespace {

// `tokens` tokens after `cached` ones. Ratio 4 attends to K selected rows, ratio 128 to every compressed row.
void SparseAttention(benchmark::State& state) {
  const int64_t tokens = state.range(0), cached = state.range(1), heads = state.range(2), ratio = state.range(3),
                k = state.range(4);
  test::CacheFixture cache(test::FullKvSpec({ratio}), {{.cached = cached, .tokens = tokens}});
  test::Random random(1);
  cache.FillRandom(random);
  Buffer q({tokens, heads, 512}), kv({tokens, 512}), sink({heads}), out({tokens, heads, 512});
  std::vector<int32_t> picks(static_cast<size_t>(tokens * std::max<int64_t>(k, 1)), -1);
  int64_t rows = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t visible = ratio == 0 ? 0 : (cached + t + 1) / ratio, count = ratio == 4 ? std::min(visible, k) : 0;
    for (int64_t i = 0; i < count; ++i)
      picks[static_cast<size_t>(t * k + i)] = static_cast<int32_t>(i * visible / count);
    rows += std::min<int64_t>(128, cached + t + 1) + (ratio == 4 ? count : visible);
  }
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::SparseAttention(ctx, {.q = q.tensor(),
                                .kv = kv.tensor(),
                                .sink = sink.tensor(),
                                .topk_idxs = ratio == 4 ? Tensor{picks.data(), DType::kI32, {tokens, k}} : Tensor{},
                                .cache = cache.View(0),
                                .out = out.tensor()});
  }
  Report(state, rows * 584, rows * heads * 512 * 2);
}
BENCHMARK(SparseAttention)
    ->UseRealTime()
    ->ArgNames({"T", "cached", "N", "ratio", "K"})
    ->Args({1, 1000, 8, 0, 0})
    ->Args({1, 1000, 8, 4, 64})
    ->Args({1, 1000, 8, 128, 0})
    ->Args({256, 1000, 8, 0, 0})
    ->Args({256, 1000, 8, 4, 64})
    ->Args({256, 1000, 8, 128, 0})
    ->Args({1, 8192, 64, 4, 512})
    ->Args({32, 8192, 64, 4, 512});

}  // namespace
}  // namespace dsv4::bench
