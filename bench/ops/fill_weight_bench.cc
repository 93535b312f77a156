#include "ops/fill_weight/fill_weight.h"

#include "support.h"

namespace dsv4::bench {
namespace {

void FillWeightNvfp4(benchmark::State& state) {
  constexpr int64_t kRows = 1024, kCols = 4096;
  std::vector<uint8_t> codes(kRows * kCols / 2), scales(kRows * kCols / 16);
  const QuantTensor w{.format = WeightFormat::kNvfp4,
                      .rows = kRows,
                      .cols = kCols,
                      .codes = codes.data(),
                      .block_scale = scales.data(),
                      .global_scale = FillGlobalScale(0.02f)};
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::FillWeight(ctx, {.w = w, .codes = codes.data(), .block_scale = scales.data(), .seed = 1, .std = 0.02f});
  }
  Report(state, kRows * w.row_bytes());
}
BENCHMARK(FillWeightNvfp4)->UseRealTime();

}  // namespace
}  // namespace dsv4::bench
