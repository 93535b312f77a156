// Times matrix products of prefill as ops, with conversion of activations, sorting and combining: TFLOP/s at the shapes
// of Flash and Pro. Prints one JSON line per case. Weights and activations are random, never zeros. Runs are timed one
// by one with events. L2 is in the state that the run before left; activations and sums of 8192 tokens do not fit in
// it. cublas_compare.py prints the same products by cuBLAS in BF16.
// "from" and "to" name the form of activations: float32, converted within the measured time, or the engine's blocks
// (ops/activation_blocks.cuh, ops/query_blocks.h).
//   prefill_bench [linear|experts] [format] [terms of an input: 1 or 2] [runs of a case]
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/random.h"
#include "device/device.h"
#include "device/launch.cuh"
#include "ops/experts/experts_sm90.h"
#include "ops/linear/wgmma/wgmma_linear.h"
#include "ops/pack_weight/pack_weight.h"

namespace dsv4 {
namespace {

Device* device = nullptr;
int parts = 1;
int asked_runs = 0;  // runs of a case; 0: 15 for linears, 9 for experts

__device__ uint32_t Hash(uint64_t i, uint32_t seed) {
  uint64_t z = (i + 1) * 0x9E3779B97F4A7C15ull + seed;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return static_cast<uint32_t>(z >> 32);
}

// The sum of four random bytes: nearly a normal distribution.
__global__ void FillFloats(float* p, int64_t n, float scale, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < n; i += gridDim.x * int64_t{256}) {
    const uint32_t h = Hash(static_cast<uint64_t>(i), seed);
    p[i] = (static_cast<float>((h & 255) + (h >> 8 & 255) + (h >> 16 & 255) + (h >> 24)) - 510.0f) / 147.8f * scale;
  }
}

// Tiles with random codes; NVFP4 scales 2^-2 .. 2^1, MXFP4 2^-1 .. 2^0, BF16 in +-[0.5, 2).
__global__ void FillTiles(uint8_t* p, int64_t n, int format, int tile, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < n; i += gridDim.x * int64_t{256}) {
    const uint32_t h = Hash(static_cast<uint64_t>(i), seed);
    uint8_t v = static_cast<uint8_t>(h);
    if (tile == 576 && i % 576 >= 512)
      v = format == static_cast<int>(WeightFormat::kNvfp4) ? 0x98 + h % 24 : 126 + h % 2;
    if (tile == 1024 && (v & 0x7F) == 0x7F) v ^= 1;
    if (tile == 2048 && i % 2 == 1) v = static_cast<uint8_t>((h & 0x80) | 0x3F);
    p[i] = v;
  }
}

__global__ void FillScales(float* p, int64_t n, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < n; i += gridDim.x * int64_t{256}) {
    p[i] = exp2f(-static_cast<float>(5 + Hash(static_cast<uint64_t>(i), seed) % 3));
  }
}

__global__ void FillHalves(__half* p, int64_t n, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < n; i += gridDim.x * int64_t{256}) {
    const uint32_t h = Hash(static_cast<uint64_t>(i), seed);
    p[i] = __float2half((static_cast<float>((h & 255) + (h >> 8 & 255) + (h >> 16 & 255) + (h >> 24)) - 510.0f) /
                        147.8f);
  }
}

struct Buffer {
  void* p = nullptr;
  explicit Buffer(int64_t bytes) : p(device->Allocate(bytes)) {
    if (p == nullptr) std::fprintf(stderr, "no memory for %lld bytes\n", static_cast<long long>(bytes)), std::exit(1);
  }
  Buffer(Buffer&& o) noexcept : p(o.p) { o.p = nullptr; }
  ~Buffer() {
    if (p != nullptr) device->Free(p);
  }
};

QuantTensor RandomWeight(std::vector<Buffer>& buffers, cudaStream_t stream, WeightFormat format, int64_t n, int64_t k,
                         uint32_t seed) {
  QuantTensor w{.format = format, .rows = n, .cols = k, .scale_dtype = DType::kF32, .layout = WeightLayout::kTiles};
  const int64_t bytes = PackedCodeBytes(w), scale_bytes = PackedScaleBytes(w);
  buffers.emplace_back(bytes + scale_bytes + 256);
  uint8_t* codes = static_cast<uint8_t*>(buffers.back().p);
  FillTiles<<<1024, 256, 0, stream>>>(codes, bytes, static_cast<int>(format), static_cast<int>(TileBytes(format)),
                                      seed);
  w.codes = codes;
  if (scale_bytes > 0) {
    uint8_t* scales = codes + CeilDiv(bytes, 256) * 256;
    FillScales<<<64, 256, 0, stream>>>(reinterpret_cast<float*>(scales), scale_bytes / 4, seed + 1);
    w.block_scale = scales;
  }
  w.global_scale = format == WeightFormat::kNvfp4 ? 0.01f : 1.0f;
  return w;
}

Tensor RandomTensor(std::vector<Buffer>& buffers, cudaStream_t stream, Shape shape, float scale, uint32_t seed) {
  buffers.emplace_back(shape.num_elements() * 4);
  float* p = static_cast<float*>(buffers.back().p);
  FillFloats<<<1024, 256, 0, stream>>>(p, shape.num_elements(), scale, seed);
  return {p, DType::kF32, shape};
}

// Median and minimum of single runs, in microseconds.
struct Times {
  double median, best;
};
Times Measure(cudaStream_t stream, int runs, const std::function<void()>& work) {
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  for (int i = 0; i < 2; ++i) work();
  std::vector<double> us;
  for (int i = 0; i < runs; ++i) {
    cudaEventRecord(begin, stream);
    work();
    cudaEventRecord(end, stream);
    cudaEventSynchronize(end);
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    us.push_back(1000.0 * ms);
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  const Status status = device->Synchronize();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str()), std::exit(1);
  std::sort(us.begin(), us.end());
  return {us[us.size() / 2], us[0]};
}

struct LinearCase {
  const char* name;
  int64_t groups, n, k;
};

void BenchLinear(WeightFormat format, const LinearCase& c, int64_t tokens) {
  ExecContext ctx = device->Context(nullptr, false);
  ctx.regime = parts == 2 ? Regime::kPrompt : Regime::kLongPrompt;
  const cudaStream_t stream = StreamOf(ctx);
  std::vector<Buffer> buffers;
  const Tensor x = RandomTensor(buffers, stream, {tokens, c.groups * c.k}, 1, 1),
               y = RandomTensor(buffers, stream, {tokens, c.groups * c.n}, 1, 2);
  LinearArgs a{
      .x = x, .parts = {{RandomWeight(buffers, stream, format, c.groups * c.n, c.k, 3), y}}, .groups = c.groups};
  if (!ctx.gpu.IsHopper()) return;
  const double flop = 2.0 * static_cast<double>(tokens * c.groups * c.n * c.k);
  const auto print_of = [&](const char* from, const char* to, const std::function<void()>& work) {
    const Times us = Measure(stream, asked_runs > 0 ? asked_runs : 15, work);
    std::printf(
        "{\"bench\":\"linear_prefill\",\"parts\":%d,\"case\":\"%s\",\"format\":\"%s\",\"from\":\"%s\",\"to\":\"%s\","
        "\"T\":%lld,\"G\":%lld,\"N\":%lld,\"K\":%lld,\"us\":%.1f,\"best_us\":%.1f,\"tflops\":%.1f}\n",
        parts, c.name, std::string(NameOf(format)).c_str(), from, to, static_cast<long long>(tokens),
        static_cast<long long>(c.groups), static_cast<long long>(c.n), static_cast<long long>(c.k), us.median, us.best,
        flop / us.median * 1e-6);
    std::fflush(stdout);
  };
  const auto print = [&](const char* from, const char* to) { print_of(from, to, [&] { WgmmaLinear(ctx, a); }); };
  print("f32", "f32");
  // The arguments that the engine passes for long prompts.
  if (parts != 1 || tokens <= 1024 || (format != WeightFormat::kNvfp4 && format != WeightFormat::kFp8Block)) return;
  buffers.emplace_back(CeilDiv(tokens, 8) * 8 * c.groups * c.k * 2);
  FillHalves<<<1024, 256, 0, stream>>>(static_cast<__half*>(buffers.back().p), tokens * c.groups * c.k, 5);
  a.x_blocks = static_cast<const uint8_t*>(buffers.back().p);
  print("blocks", "f32");
  if (std::strstr(c.name, "q_b") != nullptr) {
    const Tensor squares = RandomTensor(buffers, stream, {tokens, c.n / 64}, 1, 6),
                 cos_sin = RandomTensor(buffers, stream, {tokens, 32, 2}, 1, 7);
    LinearArgs as_queries{.x = x, .parts = a.parts};
    as_queries.parts[0].queries = {
        .blocks = static_cast<uint8_t*>(y.data), .squares = squares.f32(), .head_dim = 512, .cos_sin = cos_sin};
    print_of("f32", "queries", [&] { WgmmaLinear(ctx, as_queries); });
    as_queries.x_blocks = a.x_blocks;
    print_of("blocks", "queries", [&] { WgmmaLinear(ctx, as_queries); });
  }
  if (c.groups == 1) return;
  a.parts[0].y_blocks = static_cast<uint8_t*>(y.data);
  print("blocks", "blocks");
}

struct ExpertsCase {
  const char* name;
  int64_t experts, picked, d, f;
};

void BenchExperts(WeightFormat format, const ExpertsCase& c, int64_t tokens) {
  ExecContext ctx = device->Context(nullptr, false);
  ctx.regime = parts == 2 ? Regime::kPrompt : Regime::kLongPrompt;
  const cudaStream_t stream = StreamOf(ctx);
  std::vector<Buffer> buffers;
  std::vector<ExpertMatrices> matrices;
  for (int64_t e = 0; e < c.experts; ++e) {
    const auto seed = static_cast<uint32_t>(100 + 10 * e);
    matrices.push_back({RandomWeight(buffers, stream, format, c.f, c.d, seed),
                        RandomWeight(buffers, stream, format, c.f, c.d, seed + 2),
                        RandomWeight(buffers, stream, format, c.d, c.f, seed + 4)});
  }
  buffers.emplace_back(static_cast<int64_t>(matrices.size() * sizeof(ExpertMatrices)));
  const auto* device_matrices = static_cast<const ExpertMatrices*>(buffers.back().p);
  device->Upload(buffers.back().p, matrices.data(), static_cast<int64_t>(matrices.size() * sizeof(ExpertMatrices)));
  // Each token chooses distinct experts uniformly, so the counts per expert differ.
  std::vector<int32_t> ids;
  std::vector<int32_t> counts(static_cast<size_t>(c.experts));
  uint64_t draw = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const size_t first = ids.size();
    while (static_cast<int64_t>(ids.size() - first) < c.picked) {
      const auto id = static_cast<int32_t>(RandomBits(7, draw++) % static_cast<uint64_t>(c.experts));
      if (std::find(ids.begin() + static_cast<int64_t>(first), ids.end(), id) == ids.end())
        ids.push_back(id), ++counts[static_cast<size_t>(id)];
    }
  }
  buffers.emplace_back(static_cast<int64_t>(ids.size() * 4));
  const Tensor experts{buffers.back().p, DType::kI32, {tokens, c.picked}};
  device->Upload(buffers.back().p, ids.data(), static_cast<int64_t>(ids.size() * 4));
  const Tensor y = RandomTensor(buffers, stream, {tokens, c.d}, 1, 2);
  const ExpertsArgs a{.x = RandomTensor(buffers, stream, {tokens, c.d}, 1, 1),
                      .experts = experts,
                      .weights = RandomTensor(buffers, stream, {tokens, c.picked}, 1, 3),
                      .matrices = {device_matrices, matrices.size()},
                      .first = matrices[0],
                      .limit = 10,
                      .hidden = RandomTensor(buffers, stream, {tokens * c.picked, 2 * c.f}, 1, 4),
                      .outputs = RandomTensor(buffers, stream, {tokens * c.picked, c.d}, 1, 5),
                      .rounded_x = {},
                      .shared = y,
                      .y = y};
  if (!ctx.gpu.IsHopper()) return;
  const Times us = Measure(stream, asked_runs > 0 ? asked_runs : 9, [&] { ExpertsPrefillSm90(ctx, a); });
  const double flop = 6.0 * static_cast<double>(tokens * c.picked * c.d * c.f);
  std::printf(
      "{\"bench\":\"experts_prefill\",\"parts\":%d,\"case\":\"%s\",\"format\":\"%s\",\"T\":%lld,\"E\":%lld,\"A\":%lld,"
      "\"D\":%lld,\"F\":%lld,\"fewest\":%d,\"most\":%d,\"us\":%.1f,\"best_us\":%.1f,\"tflops\":%.1f}\n",
      parts, c.name, std::string(NameOf(format)).c_str(), static_cast<long long>(tokens),
      static_cast<long long>(c.experts), static_cast<long long>(c.picked), static_cast<long long>(c.d),
      static_cast<long long>(c.f), *std::min_element(counts.begin(), counts.end()),
      *std::max_element(counts.begin(), counts.end()), us.median, us.best, flop / us.median * 1e-6);
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  auto opened = Device::Open("cuda");
  if (!opened.ok()) return std::fprintf(stderr, "%s\n", opened.status().message().c_str()), 1;
  const std::unique_ptr<Device> owner = std::move(opened).value();
  device = owner.get();
  const std::string what = argc > 1 ? argv[1] : "";
  const std::string only = argc > 2 ? argv[2] : "";
  if (argc > 3) parts = std::atoi(argv[3]);
  if (argc > 4) asked_runs = std::atoi(argv[4]);
  const auto wanted = [&](WeightFormat f) { return only.empty() || NameOf(f) == only; };
  const WeightFormat formats[] = {WeightFormat::kNvfp4, WeightFormat::kFp8Block, WeightFormat::kMxfp4,
                                  WeightFormat::kBf16};
  const LinearCase flash[] = {{"q_b", 1, 32768, 1024},        {"o_b", 1, 4096, 8192},
                              {"o_a", 8, 1024, 4096},         {"in_proj", 1, 1536, 4096},
                              {"in_proj_csa", 1, 4160, 4096}, {"in_proj_hca", 1, 2560, 4096},
                              {"shared_up", 1, 2048, 4096},   {"shared_gate_up", 1, 4096, 4096},
                              {"shared_down", 1, 4096, 2048}};
  const LinearCase pro[] = {{"pro_q_b", 1, 65536, 1536},      {"pro_o_b", 1, 7168, 16384},
                            {"pro_o_a", 16, 1024, 4096},      {"pro_in_proj", 1, 2048, 7168},
                            {"pro_shared_up", 1, 3072, 7168}, {"pro_shared_down", 1, 7168, 3072}};
  for (const WeightFormat f : formats) {
    if (!wanted(f)) continue;
    if (what.empty() || what == "linear") {
      for (const LinearCase& c : flash) BenchLinear(f, c, 8192);
      if (f == WeightFormat::kNvfp4) {
        for (const LinearCase& c : pro) BenchLinear(f, c, 8192);
        for (const int64_t t : {128, 512, 1024, 2048}) {
          for (const LinearCase& c : {flash[0], flash[1], flash[4], flash[6]}) BenchLinear(f, c, t);
        }
      }
    }
    if ((what.empty() || what == "experts") && f != WeightFormat::kBf16) {
      if (parts == 1) BenchExperts(f, {"flash", 256, 6, 4096, 2048}, 8192);  // two terms exceed the scratch memory
      if (f == WeightFormat::kNvfp4) {
        BenchExperts(f, {"flash", 256, 6, 4096, 2048}, 2048);
        BenchExperts(f, {"flash", 256, 6, 4096, 2048}, 1024);
        BenchExperts(f, {"flash", 256, 6, 4096, 2048}, 512);
        if (parts == 2) {
          for (const int64_t t : {256, 128}) BenchExperts(f, {"flash", 256, 6, 4096, 2048}, t);
        }
        if (parts == 1) BenchExperts(f, {"pro_half", 192, 6, 7168, 3072}, 4096);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace dsv4

int main(int argc, char** argv) { return dsv4::Main(argc, argv); }
