#include "ops/compress/compress.h"

#include "support.h"
#include "support/cache_fixture.h"

namespace dsv4::bench {
namespace {

void Compress(benchmark::State& state) {
  const int64_t tokens = state.range(0), ratio = state.range(1);
  test::CacheFixture cache(test::FullKvSpec({ratio}), {{.cached = 1023, .tokens = tokens}});
  test::Random random(1);
  cache.FillRandom(random);
  const CompressorLayout& layout = cache.layout().layers[0].main;
  const int64_t width = layout.overlap * layout.dim;
  Buffer values({tokens, width}), gates({tokens, width}), bias({ratio, width}, 1e-3f), norm({layout.dim}),
      frequencies({32});
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::Compress(ctx, {.values = values.tensor(),
                         .gates = gates.tensor(),
                         .slot_bias = bias.tensor(),
                         .norm = norm.tensor(),
                         .norm_eps = 1e-6f,
                         .frequencies = frequencies.tensor(),
                         .cache = cache.View(0),
                         .layout = &layout});
  }
  Report(state, tokens * width * 8);
}
BENCHMARK(Compress)
    ->UseRealTime()
    ->ArgNames({"T", "ratio"})
    ->Args({1, 4})
    ->Args({1, 128})
    ->Args({256, 4})
    ->Args({256, 128});

}  // namespace
}  // namespace dsv4::bench
