// Times attention's kernels at the shapes of Flash (64 heads, 512 selected rows) and Pro (128 heads, 1,024): sparse
// attention in decode and prefill, the compressor and the small ops. Buffers rotate, so that no launch finds its rows
// in L2.
//   attention_bench [decode|prefill|small|one|one_decode] ...        one JSON line per case
#include <cstring>
#include <string>
#include <vector>

#include "bench/cuda/harness.cuh"
#include "engine/setup/regimes.h"
#include "kv/layout.h"
#include "ops/compress/compress.h"
#include "ops/q_prepare/q_prepare.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "ops/rope_angles/rope_angles.h"
#include "ops/round_index_query/round_index_query.h"
#include "ops/round_kv/round_kv.h"
#include "ops/sparse_attention/sparse_attention.h"
#include "ops/window_append/window_append.h"

namespace dsv4::bench {
namespace {

constexpr int64_t kDim = 512;

// Valid FP8 rows: E4M3 below 2, scale 1, BF16 tails of size 0.5 .. 1.
__global__ void FillRowsKernel(uint8_t* base, int64_t count, int64_t stride, int64_t offset, int64_t capacity) {
  const int64_t n = count * capacity * 584, step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const int64_t block = i / (capacity * 584), at = i % (capacity * 584), in_row = at % 576;
    const uint8_t bits = static_cast<uint8_t>(Mix(static_cast<uint64_t>(i)));
    uint8_t v = bits & 0xBF;
    if (at >= capacity * 576) {
      v = 127;
    } else if (in_row >= 448 && in_row % 2 == 1) {
      v = static_cast<uint8_t>((bits & 0x80) | 0x3F);
    }
    base[block * stride + offset + at] = v;
  }
}

template <typename T>
T* Upload(Gpu& gpu, const std::vector<T>& values) {
  T* p = static_cast<T*>(gpu.Allocate(static_cast<int64_t>(values.size() * sizeof(T))));
  DSV4_BENCH_CHECK(cudaMemcpy(p, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}

// `copies` sets of one layer's caches for `batch` sequences at position `start`, with `tokens` more tokens per step.
struct Setup {
  Setup(Gpu& gpu, int64_t ratio, int64_t heads, int64_t k, int64_t batch, int64_t start, int64_t tokens, int copies)
      : layout(MakeKvLayout(
            {.compress_ratios = {ratio}, .window = 128, .head_dim = kDim, .rope_dim = 64, .index_head_dim = 128})),
        num_heads(heads),
        num_tokens(batch * tokens),
        num_copies(copies) {
    const LayerLayout& l = layout.layers[0];
    const int64_t pages = ratio == 0 ? 0 : (start + tokens + 255) / 256, fixed = layout.fixed_bytes;
    q_stride = num_tokens * heads * kDim;
    q = static_cast<float*>(gpu.Allocate(copies * q_stride * 4));
    out = static_cast<float*>(gpu.Allocate(copies * q_stride * 4));
    kv = static_cast<float*>(gpu.Allocate(num_tokens * kDim * 4));
    sink = static_cast<float*>(gpu.Allocate(heads * 4));
    FillNormalKernel<<<1024, 256, 0, StreamOf(gpu.ctx())>>>(q, copies * q_stride, 1, 1.0f);
    FillNormalKernel<<<256, 256, 0, StreamOf(gpu.ctx())>>>(kv, num_tokens * kDim, 2, 1.0f);
    FillNormalKernel<<<1, 256, 0, StreamOf(gpu.ctx())>>>(sink, heads, 3, 1.0f);
    fixed_memory = static_cast<uint8_t*>(gpu.Allocate(copies * batch * fixed));
    DSV4_BENCH_CHECK(
        cudaMemsetAsync(fixed_memory, 0, static_cast<size_t>(copies * batch * fixed), StreamOf(gpu.ctx())));
    FillRowsKernel<<<1024, 256, 0, StreamOf(gpu.ctx())>>>(fixed_memory, copies * batch, fixed, l.window_offset,
                                                          static_cast<int>(l.window_slots));
    if (pages > 0) {
      page_memory = static_cast<uint8_t*>(gpu.Allocate(copies * batch * pages * layout.page_bytes));
      FillRowsKernel<<<1024, 256, 0, StreamOf(gpu.ctx())>>>(page_memory, copies * batch * pages, layout.page_bytes,
                                                            l.main.rows_offset, l.main.rows_per_page);
    }
    gpu.Synchronize();
    std::vector<uint8_t*> page_of;
    for (int64_t i = 0; i < copies * batch * pages; ++i) page_of.push_back(page_memory + i * layout.page_bytes);
    uint8_t** device_pages = page_of.empty() ? nullptr : Upload(gpu, page_of);
    std::vector<SequenceView> views;
    for (int64_t i = 0; i < copies * batch; ++i) {
      const int64_t b = i % batch;
      views.push_back({.start = start,
                       .begin = b * tokens,
                       .end = (b + 1) * tokens,
                       .fixed = fixed_memory + i * fixed,
                       .pages = device_pages + i * pages});
    }
    sequences = Upload(gpu, views);
    std::vector<int32_t> sequence, chosen;
    std::vector<int64_t> position;
    for (int64_t t = 0; t < num_tokens; ++t) {
      sequence.push_back(static_cast<int32_t>(t / tokens));
      position.push_back(start + t % tokens);
      const int64_t visible = ratio == 0 ? 0 : (position.back() + 1) / ratio;
      for (int64_t i = 0; i < k; ++i) {
        chosen.push_back(
            visible <= k ? (i < visible ? static_cast<int32_t>(i) : -1)
                         : static_cast<int32_t>(i * visible / k + ((t * 31 + i * 17) / 8 % 2) * (visible >= 2 * k)));
      }
      const int64_t r = std::min<int64_t>(128, position.back() + 1) + (ratio == 0 ? 0
                                                                       : k > 0    ? std::min(k, visible)
                                                                                  : visible);
      rows += r;
      own_rows += std::min<int64_t>(std::min<int64_t>(128, t % tokens + 1), position.back() + 1);
    }
    sequence_of = Upload(gpu, sequence);
    positions = Upload(gpu, position);
    if (k > 0) picks = Upload(gpu, chosen), num_picks = k;
    cache = {.layer = &layout.layers[0],
             .window = 128,
             .sequences = sequences,
             .num_sequences = batch,
             .sequence_of = sequence_of,
             .positions = positions,
             .num_tokens = num_tokens};
    DSV4_BENCH_CHECK(cudaDeviceSynchronize());  // ctx's stream does not wait for the uploads
  }
  ~Setup() {
    for (void* p :
         std::vector<void*>{q, out, kv, sink, fixed_memory, page_memory, sequences, sequence_of, positions, picks})
      cudaFree(p);
  }

  CacheView Cache(int i) const {
    CacheView c = cache;
    c.sequences = sequences + i % num_copies * cache.num_sequences;
    return c;
  }
  SparseAttentionArgs Args(int i) const {
    const int64_t at = i % num_copies * q_stride;
    SparseAttentionArgs args;
    args.q = {q + at, DType::kF32, {num_tokens, num_heads, kDim}};
    args.kv = {kv, DType::kF32, {num_tokens, kDim}};
    args.sink = {sink, DType::kF32, {num_heads}};
    if (num_picks > 0) args.topk_idxs = {picks, DType::kI32, {num_tokens, num_picks}};
    args.cache = Cache(i);
    args.out = {out + at, DType::kF32, {num_tokens, num_heads, kDim}};
    return args;
  }

  KvLayout layout;
  CacheView cache;
  int64_t num_heads, num_tokens, num_picks = 0, rows = 0, own_rows = 0, q_stride;
  int num_copies;
  float *q = nullptr, *out = nullptr, *kv = nullptr, *sink = nullptr;
  uint8_t *fixed_memory = nullptr, *page_memory = nullptr;
  SequenceView* sequences = nullptr;
  int32_t *sequence_of = nullptr, *picks = nullptr;
  int64_t* positions = nullptr;
};

void Attend(Gpu& gpu, const char* model, int64_t ratio, int64_t heads, int64_t k, int64_t batch, int64_t start,
            int64_t tokens) {
  const int64_t t = batch * tokens;
  const int64_t cold = t * heads * kDim * 8 + batch * std::min<int64_t>(640, start + tokens) * 584;
  const int copies = tokens > 1 ? 1 : static_cast<int>(std::clamp<int64_t>((int64_t{200} << 20) / cold, 3, 128));
  const Setup s(gpu, ratio, heads, k, batch, start, tokens, copies);
  gpu.ctx().regime = RegimeOfPrompt(t);
  const double us = gpu.MedianUs(
      tokens > 1 ? 2 : copies, [&](const ExecContext& ctx, int i) { SparseAttention(ctx, s.Args(i)); },
      tokens > 1 ? 5 : 11);
  const double flop = static_cast<double>(s.rows) * static_cast<double>(heads) * kDim * 4;
  const int64_t bytes = t * heads * kDim * 8 +
                        (tokens > 1 ? (start + tokens) * 584 / std::max<int64_t>(ratio, 1) : s.rows * 584);
  Line("sparse_attention")
      .Add("model", model)
      .Add("ratio", ratio)
      .Add("heads", heads)
      .Add("T", t)
      .Add("start", start)
      .Add("rows_per_token", s.rows / t)
      .Add("us", us)
      .Add("tflops", flop / us * 1e-6)
      .Add("bytes", bytes)
      .Add("read_limit_us", gpu.ReadLimitUs(bytes))
      .Print();
}

void Decode(Gpu& gpu) {
  for (const int64_t batch : {1, 2, 4, 8, 16, 32, 64, 128}) Attend(gpu, "flash", 4, 64, 512, batch, 8191, 1);
  for (const int64_t batch : {1, 8, 64}) {
    Attend(gpu, "pro", 4, 128, 1024, batch, 8191, 1);
    Attend(gpu, "flash", 128, 64, 0, batch, 8191, 1);
    Attend(gpu, "flash", 0, 64, 0, batch, 8191, 1);
    Attend(gpu, "flash", 128, 64, 0, batch, 131071, 1);
  }
  Attend(gpu, "flash tp4", 4, 16, 512, 1, 8191, 1);
  Attend(gpu, "flash tp2", 4, 32, 512, 1, 8191, 1);
}

void Prefill(Gpu& gpu) {
  Attend(gpu, "flash", 4, 64, 512, 1, 0, 8192);
  Attend(gpu, "flash", 4, 64, 512, 1, 8192, 2048);
  Attend(gpu, "flash", 128, 64, 0, 1, 0, 8192);
  Attend(gpu, "flash", 0, 64, 0, 1, 0, 8192);
  Attend(gpu, "pro", 4, 128, 1024, 1, 8192, 2048);
  Attend(gpu, "flash", 4, 64, 512, 1, 2048, 512);
}

void Small(Gpu& gpu) {
  for (const int64_t t : {1, 64, 8192}) {
    const int copies = t > 64 ? 2 : 32;
    const Floats q(gpu, copies * t * 64 * kDim), cs(gpu, t * 64);
    const auto line = [&](const char* op, double us) { Line(op).Add("T", t).Add("us", us).Print(); };
    const auto q_at = [&](int i) { return q.data() + i % copies * t * 64 * kDim; };
    line("rope 64x512", gpu.MedianUs(copies, [&](const ExecContext& ctx, int i) {
      Rope(ctx, {.x = {q_at(i), DType::kF32, {t, 64, kDim}}, .cos_sin = cs.tensor({t, 32, 2})});
    }));
    line("rms_norm 64x512", gpu.MedianUs(copies, [&](const ExecContext& ctx, int i) {
      RmsNorm(ctx,
              {.x = {q_at(i), DType::kF32, {t * 64, kDim}}, .y = {q_at(i), DType::kF32, {t * 64, kDim}}, .eps = 1e-6f});
    }));
    line("round_kv", gpu.MedianUs(copies, [&](const ExecContext& ctx, int i) {
      RoundKv(ctx, {.kv = {q_at(i), DType::kF32, {t, kDim}}, .format = KvRowFormat(KvDtype::kFp8, kDim, 64)});
    }));
    line("round_index_query 64x128", gpu.MedianUs(copies, [&](const ExecContext& ctx, int i) {
      RoundIndexQuery(ctx, {.q = {q_at(i), DType::kF32, {t, 64, 128}}});
    }));
    {
      const Floats iq(gpu, t * 64 * 128), norm(gpu, kDim);
      const Setup s(gpu, 4, 64, 0, t > 64 ? 1 : t, 1000, t > 64 ? t : 1, 1);
      line("q_prepare", gpu.MedianUs(copies, [&](const ExecContext& ctx, int i) {
        QPrepareArgs args;
        args.q = {q_at(i), DType::kF32, {t, 64, kDim}};
        args.kv = {s.kv, DType::kF32, {t, kDim}};
        args.kv_norm = norm.tensor({kDim});
        args.index_q = iq.tensor({t, 64, 128});
        args.cos_sin = cs.tensor({t, 32, 2});
        args.cache = s.Cache(0);
        args.append = t <= 64;
        QPrepare(ctx, args);
      }));
    }
    for (const int64_t ratio : {4, 128}) {
      const int64_t width = ratio == 4 ? 1024 : 512, batch = t > 64 ? 1 : t;
      const int rotate = t > 64 ? 1 : t == 1 ? 64 : 4;
      for (const int64_t start : {int64_t{8191}, int64_t{8190}}) {
        const Setup s(gpu, ratio, 64, 0, batch, t > 64 ? 0 : start, t / batch, rotate);
        const Floats values(gpu, t * width), gates(gpu, t * width), bias(gpu, ratio * width), norm(gpu, 512),
            frequencies(gpu, 32);
        line((std::string("compress ") + std::to_string(ratio) + (start == 8191 ? " emits" : "")).c_str(),
             gpu.MedianUs(rotate, [&](const ExecContext& ctx, int i) {
               Compress(ctx, {.values = values.tensor({t, width}),
                              .gates = gates.tensor({t, width}),
                              .slot_bias = bias.tensor({ratio, width}),
                              .norm = norm.tensor({512}),
                              .norm_eps = 1e-6f,
                              .frequencies = frequencies.tensor({32}),
                              .cache = s.Cache(i),
                              .layout = &s.layout.layers[0].main});
             }));
        if (ratio == 4 && start == 8191) {
          line("window_append", gpu.MedianUs(rotate, [&](const ExecContext& ctx, int i) {
            WindowAppend(ctx, {.kv = {s.kv, DType::kF32, {t, kDim}}, .cache = s.Cache(i)});
          }));
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::bench

int main(int argc, char** argv) {
  using namespace dsv4::bench;
  Gpu gpu;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "decode") == 0) Decode(gpu);
    if (std::strcmp(argv[i], "prefill") == 0) Prefill(gpu);
    if (std::strcmp(argv[i], "small") == 0) Small(gpu);
    if (std::strcmp(argv[i], "one") == 0) Attend(gpu, "flash", 4, 64, 512, 1, 2048, 512);  // for a profiler
    if (std::strcmp(argv[i], "one_decode") == 0) Attend(gpu, "flash", 4, 64, 512, 1, 8191, 1);
  }
  return 0;
}
