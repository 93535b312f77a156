// Times scores and top-k of the index: FP4 keys, 64 heads of 128 channels. Keys are not in L2.
// limit_us: a pure read of the keys' bytes (decode). Prefill reports mma_tflops instead.
#include <numeric>

#include "bench/cuda/harness.cuh"
#include "ops/index_topk/index_topk.h"

namespace dsv4 {
void IndexTopkCuda(const ExecContext& ctx, const IndexTopkArgs& args);
}

namespace dsv4::bench {
namespace {

constexpr int64_t kHeads = 64, kDim = 128, kRatio = 4, kPageRows = 64;

__global__ void FillPagesKernel(uint8_t* pages, int64_t page_bytes, int64_t num_pages) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < page_bytes * num_pages;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const uint64_t bits = Mix(static_cast<uint64_t>(i));
    pages[i] = i % page_bytes < kPageRows * 64 ? static_cast<uint8_t>(bits) : static_cast<uint8_t>(122 + bits % 4);
  }
}

template <typename T>
T* Upload(Gpu& gpu, const std::vector<T>& v) {
  T* p = static_cast<T*>(gpu.Allocate(static_cast<int64_t>(v.size() * sizeof(T))));
  DSV4_BENCH_CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}

// A step of `sequences` sequences with `tokens` tokens each; the last token is at position `context` - 1.
void Run(Gpu& gpu, const char* model, int64_t k, int64_t sequences, int64_t tokens, int64_t context) {
  const int64_t t = sequences * tokens, rows = context / kRatio, pages = CeilDiv(rows, kPageRows),
                page_bytes = kPageRows * 68;
  const int copies = tokens > 1 ? 1 : std::min(64, Gpu::Copies(sequences * pages * page_bytes));
  uint8_t* memory = static_cast<uint8_t*>(gpu.Allocate(copies * sequences * pages * page_bytes));
  FillPagesKernel<<<1024, 256, 0, StreamOf(gpu.ctx())>>>(memory, page_bytes, copies * sequences * pages);
  gpu.Synchronize();
  std::vector<uint8_t*> table(static_cast<size_t>(copies * sequences * pages));
  for (size_t i = 0; i < table.size(); ++i) table[i] = memory + static_cast<int64_t>(i) * page_bytes;
  uint8_t** device_table = Upload(gpu, table);
  std::vector<SequenceView> views;
  for (int64_t c = 0; c < copies * sequences; ++c) {
    const int64_t s = c % sequences;
    views.push_back({.start = context - tokens,
                     .begin = s * tokens,
                     .end = (s + 1) * tokens,
                     .fixed = nullptr,
                     .pages = device_table + c * pages});
  }
  std::vector<int32_t> sequence_of;
  std::vector<int64_t> positions;
  for (int64_t s = 0; s < sequences; ++s) {
    for (int64_t i = 0; i < tokens; ++i)
      sequence_of.push_back(static_cast<int32_t>(s)), positions.push_back(context - tokens + i);
  }
  SequenceView* device_views = Upload(gpu, views);
  int32_t* device_of = Upload(gpu, sequence_of);
  int64_t* device_positions = Upload(gpu, positions);
  LayerLayout layer;
  layer.index = {.ratio = kRatio,
                 .overlap = 2,
                 .dim = kDim,
                 .rows_offset = 0,
                 .rows_per_page = kPageRows,
                 .row = IndexKeyFormat(IndexDtype::kFp4, kDim)};
  // Queries are small integers, which FP4 represents exactly.
  std::vector<float> host_q(static_cast<size_t>(t * kHeads * kDim));
  for (size_t i = 0; i < host_q.size(); ++i)
    host_q[i] = static_cast<float>(static_cast<int>((i * 2654435761u >> 16) % 9) - 4);
  float* q = Upload(gpu, host_q);
  Floats weights(gpu, t * kHeads);
  int32_t* out = static_cast<int32_t*>(gpu.Allocate(t * k * 4));
  const double us = gpu.MedianUs(tokens > 1 ? 2 : copies, [&](const ExecContext& ctx, int i) {
    IndexTopkCuda(ctx, {.q = {q, DType::kF32, {t, kHeads, kDim}},
                        .weights = weights.tensor({t, kHeads}),
                        .cache = {.layer = &layer,
                                  .sequences = device_views + (i % copies) * sequences,
                                  .num_sequences = sequences,
                                  .sequence_of = device_of,
                                  .positions = device_positions,
                                  .num_tokens = t},
                        .topk_idxs = {out, DType::kI32, {t, k}}});
  });
  Line line("index_topk");
  line.Add("model", model)
      .Add("k", k)
      .Add("sequences", sequences)
      .Add("tokens", tokens)
      .Add("context", context)
      .Add("us", us);
  double scored = 0;
  for (const int64_t p : positions) scored += (p + 1) / kRatio > k ? static_cast<double>((p + 1) / kRatio) : 0.0;
  if (tokens == 1) line.Add("limit_us", gpu.ReadLimitUs(sequences * rows * 68));
  line.Add("mma_tflops", scored * kHeads * kDim * 2 / us / 1e6).Print();
  cudaFree(memory), cudaFree(device_table), cudaFree(device_views), cudaFree(device_of), cudaFree(device_positions),
      cudaFree(q), cudaFree(out);
}

}  // namespace
}  // namespace dsv4::bench

// index_topk_bench [profile | decode]
int main(int argc, char** argv) {
  dsv4::bench::Gpu gpu;
  const std::string which = argc > 1 ? argv[1] : "";
  if (which == "profile") {
    dsv4::bench::Run(gpu, "flash", 512, 1, 1, 131072);
    dsv4::bench::Run(gpu, "flash", 512, 1, 8192, 8192);
    return 0;
  }
  for (const int64_t context : {1024, 4096, 8192, 16384, 32768, 131072, 1048576})
    dsv4::bench::Run(gpu, "flash", 512, 1, 1, context);
  for (const int64_t context : {8192, 131072}) dsv4::bench::Run(gpu, "pro", 1024, 1, 1, context);
  for (const int64_t s : {2, 4, 8, 16, 32, 128}) {
    for (const int64_t context : {8192, 32768, 131072}) dsv4::bench::Run(gpu, "flash", 512, s, 1, context);
  }
  if (which == "decode") return 0;
  for (const int64_t tokens : {512, 2048, 8192}) dsv4::bench::Run(gpu, "flash", 512, 1, tokens, tokens);
  dsv4::bench::Run(gpu, "flash", 512, 1, 2048, 131072);
  dsv4::bench::Run(gpu, "flash", 512, 1, 8192, 32768);
}
