#include "ops/embed/embed.h"

#include "support.h"
#include "support/quant_fixture.h"

namespace dsv4::bench {
namespace {

void Embed(benchmark::State& state) {
  const int64_t t = state.range(0), d = state.range(1), vocab = 4096;
  test::Random random(1);
  const test::QuantFixture table(random, {WeightFormat::kBf16}, vocab, d);
  std::vector<int32_t> tokens(static_cast<size_t>(t));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.Index(vocab));
  Buffer streams({t, 4, d});
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::Embed(ctx,
                {.tokens = {tokens.data(), DType::kI32, {t}}, .table = table.tensor(), .streams = streams.tensor()});
  }
  Report(state, t * d * 18);
}
BENCHMARK(Embed)->UseRealTime()->ArgNames({"T", "D"})->Args({1, 256})->Args({256, 256});

}  // namespace
}  // namespace dsv4::bench
