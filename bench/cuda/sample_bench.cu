// Times sampling from 129,280 logits, which are not in L2. limit_us: a pure read of the logits.
#include "bench/cuda/harness.cuh"
#include "ops/sample/sample.h"

namespace dsv4 {
void SampleCuda(const ExecContext& ctx, const SampleArgs& args);
}

namespace dsv4::bench {
namespace {

void Run(Gpu& gpu, const char* name, const SampleRow& row, int64_t r, bool logprobs) {
  const int64_t v = 129280;
  const int copies = std::min(64, Gpu::Copies(r * v * 4));
  Floats logits(gpu, copies * r * v, 3.0f), probabilities(gpu, r);
  std::vector<SampleRow> rows(static_cast<size_t>(r), row);
  for (size_t i = 0; i < rows.size(); ++i) rows[i].seed = i;
  SampleRow* device_rows = static_cast<SampleRow*>(gpu.Allocate(static_cast<int64_t>(rows.size() * sizeof(SampleRow))));
  DSV4_BENCH_CHECK(cudaMemcpy(device_rows, rows.data(), rows.size() * sizeof(SampleRow), cudaMemcpyHostToDevice));
  int32_t* tokens = static_cast<int32_t*>(gpu.Allocate(r * 4));
  const double us = gpu.MedianUs(copies, [&](const ExecContext& ctx, int i) {
    SampleCuda(ctx, {.logits = {logits.data() + i * r * v, DType::kF32, {r, v}},
                     .rows = device_rows,
                     .tokens = {tokens, DType::kI32, {r}},
                     .logprobs = logprobs ? probabilities.tensor({r}) : Tensor{}});
  });
  Line("sample").Add("case", name).Add("R", r).Add("us", us).Add("limit_us", gpu.ReadLimitUs(r * v * 4)).Print();
  cudaFree(device_rows);
  cudaFree(tokens);
}

}  // namespace
}  // namespace dsv4::bench

int main() {
  using dsv4::bench::Run;
  dsv4::bench::Gpu gpu;
  for (const int64_t r : {1, 8, 32, 128}) {
    Run(gpu, "greedy", {.temperature = 0}, r, false);
    Run(gpu, "temperature 1", {}, r, false);
    Run(gpu, "temperature 0.6, top-p 0.95", {.temperature = 0.6f, .top_p = 0.95f}, r, false);
    if (r > 8) continue;
    Run(gpu, "temperature 1, top-p 0.95", {.top_p = 0.95f}, r, false);
    Run(gpu, "top-p 0.95, logprob", {.top_p = 0.95f}, r, true);
    Run(gpu, "min-p 0.05", {.min_p = 0.05f}, r, false);
    Run(gpu, "top-k 40", {.top_k = 40}, r, false);
    Run(gpu, "top-k 40, top-p 0.95, min-p 0.05", {.top_p = 0.95f, .min_p = 0.05f, .top_k = 40}, r, false);
  }
}
