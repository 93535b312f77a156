#include "ops/linear/linear.h"

#include "support.h"
#include "support/quant_fixture.h"

namespace dsv4::bench {
namespace {

// Rows of a matrix that is too large for the caches, so that T = 1 shows the rate of memory.
void Linear(benchmark::State& state, WeightFormat format, ActivationDtype activation = ActivationDtype::kNative) {
  const int64_t t = state.range(0), n = state.range(1), k = state.range(2);
  test::Random random(1);
  const test::QuantFixture w(random, {format, DType::kF8E8M0}, n, k);
  Buffer x({t, k}), y({t, n});
  const ExecContext ctx = Context();
  for (auto _ : state)
    dsv4::Linear(ctx, {.x = x.tensor(), .parts = {{w.tensor(), y.tensor()}}, .activation = activation});
  const int64_t scales = format == WeightFormat::kNvfp4 ? n * k / 16 : format == WeightFormat::kMxfp4 ? n * k / 32 : 0;
  Report(state, n * w.tensor().row_bytes() + scales, t * n * k);
}
void Shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"T", "N", "K"})->UseRealTime();
  for (const int64_t t : {1, 2, 4, 8, 64, 256}) b->Args({t, 1024, 256})->Args({t, 4096, 4096});
}
BENCHMARK_CAPTURE(Linear, f32, WeightFormat::kF32)->Apply(Shapes);
BENCHMARK_CAPTURE(Linear, bf16, WeightFormat::kBf16)->Apply(Shapes);
BENCHMARK_CAPTURE(Linear, fp8, WeightFormat::kFp8Block)->Apply(Shapes);
BENCHMARK_CAPTURE(Linear, mxfp4, WeightFormat::kMxfp4)->Apply(Shapes);
BENCHMARK_CAPTURE(Linear, nvfp4, WeightFormat::kNvfp4)->Apply(Shapes);

BENCHMARK_CAPTURE(Linear, mxfp4_int8, WeightFormat::kMxfp4, ActivationDtype::kInt8)->Apply(Shapes);
BENCHMARK_CAPTURE(Linear, nvfp4_int8, WeightFormat::kNvfp4, ActivationDtype::kInt8)->Apply(Shapes);
BENCHMARK_CAPTURE(Linear, mxfp4_int16, WeightFormat::kMxfp4, ActivationDtype::kInt16)->Apply(Shapes);
BENCHMARK_CAPTURE(Linear, nvfp4_int16, WeightFormat::kNvfp4, ActivationDtype::kInt16)->Apply(Shapes);
BENCHMARK_CAPTURE(Linear, mxfp4_int24, WeightFormat::kMxfp4, ActivationDtype::kInt24)->Apply(Shapes);
BENCHMARK_CAPTURE(Linear, nvfp4_int24, WeightFormat::kNvfp4, ActivationDtype::kInt24)->Apply(Shapes);

// Four projections of one input.
void LinearOfFourParts(benchmark::State& state) {
  const int64_t t = state.range(0), k = 4096;
  test::Random random(1);
  std::vector<test::QuantFixture> weights;
  std::vector<Buffer> outputs;
  Buffer x({t, k});
  int64_t bytes = 0, products = 0;
  for (const int64_t n : {256, 512, 1024, 256}) {
    weights.emplace_back(random, test::QuantCase{WeightFormat::kNvfp4}, n, k);
    outputs.emplace_back(Shape{t, n});
    bytes += n * weights.back().tensor().row_bytes();
    products += t * n * k;
  }
  LinearArgs args{.x = x.tensor()};
  for (size_t i = 0; i < weights.size(); ++i) args.parts.Add({.w = weights[i].tensor(), .y = outputs[i].tensor()});
  const ExecContext ctx = Context();
  for (auto _ : state) dsv4::Linear(ctx, args);
  Report(state, bytes, products);
}
BENCHMARK(LinearOfFourParts)->ArgName("T")->UseRealTime()->Arg(1)->Arg(8);

// Plain reads of 256 MiB with the same threads: the bound of every figure with T = 1.
void ReadMemory(benchmark::State& state) {
  std::vector<uint64_t> words(size_t{1} << 25, 1);
  const ExecContext ctx = Context();
  for (auto _ : state) {
    ParallelFor(ctx.pool, static_cast<int64_t>(words.size()), 1, [&](int64_t begin, int64_t end, int) {
      uint64_t sum[8] = {};
      for (int64_t i = begin; i + 8 <= end; i += 8) {
        for (int64_t j = 0; j < 8; ++j) sum[j] += words[static_cast<size_t>(i + j)];
      }
      benchmark::DoNotOptimize(sum);
    });
  }
  Report(state, static_cast<int64_t>(words.size() * 8));
}
BENCHMARK(ReadMemory)->UseRealTime();

}  // namespace
}  // namespace dsv4::bench
