#include "ops/pack_weight/pack_weight.h"

#include "support.h"
#include "support/quant_fixture.h"

namespace dsv4::bench {
namespace {

void PackWeight(benchmark::State& state, WeightFormat format) {
  const int64_t n = state.range(0), k = state.range(1);
  test::Random random(1);
  const test::QuantFixture w(random, {format, DType::kF8E8M0}, n, k);
  std::vector<uint8_t> codes(static_cast<size_t>(PackedCodeBytes(w.tensor()))),
      scales(static_cast<size_t>(PackedScaleBytes(w.tensor())));
  const ExecContext ctx = Context();
  for (auto _ : state) dsv4::PackWeight(ctx, {.w = w.tensor(), .codes = codes.data(), .block_scale = scales.data()});
  Report(state, n * w.tensor().row_bytes());
}
void PackShapes(benchmark::internal::Benchmark* b) { b->ArgNames({"N", "K"})->UseRealTime()->Args({256, 1024}); }
BENCHMARK_CAPTURE(PackWeight, bf16, WeightFormat::kBf16)->Apply(PackShapes);
BENCHMARK_CAPTURE(PackWeight, fp8, WeightFormat::kFp8Block)->Apply(PackShapes);
BENCHMARK_CAPTURE(PackWeight, mxfp4, WeightFormat::kMxfp4)->Apply(PackShapes);
BENCHMARK_CAPTURE(PackWeight, nvfp4, WeightFormat::kNvfp4)->Apply(PackShapes);

}  // namespace
}  // namespace dsv4::bench
