#include "ops/digest/digest.h"

#include "support.h"

namespace dsv4::bench {
namespace {

// A matrix of an expert in NVFP4, and a larger one.
void Digest(benchmark::State& state) {
  const int64_t bytes = state.range(0);
  const std::vector<uint8_t> data(static_cast<size_t>(bytes), 3);
  int64_t sum = 0;
  const ExecContext ctx = Context();
  for (auto _ : state) dsv4::Digest(ctx, {.data = data.data(), .bytes = bytes, .sum = {&sum, DType::kI64, {1}}});
  Report(state, bytes);
}
BENCHMARK(Digest)->UseRealTime()->Arg(4 << 20)->Arg(256 << 20);

}  // namespace
}  // namespace dsv4::bench
