#include "ops/q_prepare/q_prepare.h"

#include "support.h"
#include "support/cache_fixture.h"

namespace dsv4::bench {
namespace {

void QPrepare(benchmark::State& state) {
  const int64_t t = state.range(0), heads = 64, index_heads = 64;
  const KvSpec spec = test::FullKvSpec({4});
  test::CacheFixture cache(spec, {{.cached = 0, .tokens = t}});
  Buffer q({t, heads, spec.head_dim}), kv({t, spec.head_dim}), norm({spec.head_dim}),
      cos_sin({t, spec.rope_dim / 2, 2});
  Buffer index_q({t, index_heads, spec.index_head_dim});
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::QPrepare(ctx, {.q = q.tensor(),
                         .kv = kv.tensor(),
                         .kv_norm = norm.tensor(),
                         .index_q = index_q.tensor(),
                         .cos_sin = cos_sin.tensor(),
                         .norm_eps = 1e-6f,
                         .cache = cache.View(0)});
  }
  Report(state, 2 * 4 * t * (heads * spec.head_dim + spec.head_dim + index_heads * spec.index_head_dim));
}
BENCHMARK(QPrepare)->UseRealTime()->Arg(1)->Arg(64);

}  // namespace
}  // namespace dsv4::bench
