#include "ops/linears/linears.h"

#include "support.h"
#include "support/quant_fixture.h"

namespace dsv4::bench {
namespace {

// Four projections of one input.
void Linears(benchmark::State& state) {
  const int64_t t = state.range(0), k = 4096;
  test::Random random(1);
  std::vector<test::QuantFixture> weights;
  std::vector<Buffer> outputs;
  Buffer x({t, k});
  LinearsArgs args{.x = x.tensor(), .count = 4};
  int64_t bytes = 0, products = 0;
  for (const int64_t n : {256, 512, 1024, 256}) {
    weights.emplace_back(random, test::QuantCase{WeightFormat::kNvfp4}, n, k);
    outputs.emplace_back(Shape{t, n});
    bytes += n * weights.back().tensor().row_bytes();
    products += t * n * k;
  }
  for (size_t i = 0; i < 4; ++i) args.parts[i] = {.w = weights[i].tensor(), .y = outputs[i].tensor()};
  const ExecContext ctx = Context();
  for (auto _ : state) dsv4::Linears(ctx, args);
  Report(state, bytes, products);
}
BENCHMARK(Linears)->ArgName("T")->UseRealTime()->Arg(1)->Arg(8);

}  // namespace
}  // namespace dsv4::bench
