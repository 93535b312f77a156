#include "ops/window_append/window_append.h"

#include "support.h"
#include "support/cache_fixture.h"

namespace dsv4::bench {
namespace {

void WindowAppend(benchmark::State& state) {
  const int64_t t = state.range(0);
  test::CacheFixture cache(test::FullKvSpec({0}), {{.cached = 1000, .tokens = t}});
  Buffer kv({t, 512});
  const ExecContext ctx = Context();
  for (auto _ : state) dsv4::WindowAppend(ctx, {.kv = kv.tensor(), .cache = cache.View(0)});
  Report(state, std::min<int64_t>(t, 128) * 2048);
}
BENCHMARK(WindowAppend)->UseRealTime()->ArgName("T")->Arg(1)->Arg(256);

}  // namespace
}  // namespace dsv4::bench
