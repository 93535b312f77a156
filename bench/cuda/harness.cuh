// Helpers of the GPU benchmarks: a device, rotating buffers (so that a launch never finds its bytes in L2), CUDA graph
// replays, medians, realistic weights made on the device, and the limit. The limit is the time of a kernel that only
// reads the same bytes, launched the same way in the same run. A benchmark is a program that prints one JSON line per
// case:
//
//   bench::Gpu gpu;                                                  // prints a line about the machine
//   bench::Weights w(gpu, WeightFormat::kNvfp4, n, k);               // copies that fill more than L2 five times over
//   bench::Floats x(gpu, t * k), y(gpu, t * n);
//   double us = gpu.MedianUs(w.copies(), [&](const ExecContext& ctx, int i) { LinearCuda(ctx, {.., .w = w[i], ..}); });
//   bench::Line("linear").Add("N", n).Add("us", us).Add("limit_us", gpu.ReadLimitUs(w.bytes())).Print();
//
// Build: /usr/local/cuda/bin/nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -I. -Isrc -Iinclude ... with the
// libraries of a CUDA build (docs/dev/cuda.md).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/launch.cuh"
#include "ops/fill_weight/fill_weight.h"
#include "ops/pack_weight/pack_weight.h"
#include "tensor/tensor.h"

namespace dsv4 {
void PackWeightCuda(const ExecContext& ctx, const PackWeightArgs& args);
void FillWeightCuda(const ExecContext& ctx, const FillWeightArgs& args);
}  // namespace dsv4

namespace dsv4::bench {

#define DSV4_BENCH_CHECK(call)                                                               \
  do {                                                                                       \
    const cudaError_t error_ = (call);                                                       \
    if (error_ != cudaSuccess) {                                                             \
      std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
      std::exit(1);                                                                          \
    }                                                                                        \
  } while (0)

// Builds and prints one JSON object on a line.
class Line {
 public:
  explicit Line(const std::string& bench) { Add("bench", bench); }
  Line& Add(const std::string& key, const std::string& value) { return Raw(key, "\"" + value + "\""); }
  Line& Add(const std::string& key, const char* value) { return Add(key, std::string(value)); }
  Line& Add(const std::string& key, double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", value);
    return Raw(key, text);
  }
  Line& Add(const std::string& key, int64_t value) { return Raw(key, std::to_string(value)); }
  Line& Add(const std::string& key, int value) { return Raw(key, std::to_string(value)); }
  void Print() const {
    std::printf("{%s}\n", text_.c_str());
    std::fflush(stdout);
  }

 private:
  Line& Raw(const std::string& key, const std::string& value) {
    text_ += (text_.empty() ? "\"" : ", \"") + key + "\": " + value;
    return *this;
  }
  std::string text_;
};

// Reads `n` 16-byte words as fast as a launch can. Reads a first part before the wait for the previous kernel, as
// kernels read their weights.
template <int Unroll>
__global__ void __launch_bounds__(512) ReadKernel(const uint4* p, int64_t n, uint32_t* out) {
  AllowNext();
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  uint32_t bits = 0;
  bool waited = false;
  do {
    uint4 v[Unroll];
#pragma unroll
    for (int u = 0; u < Unroll; ++u) v[u] = i + u * stride < n ? __ldcs(p + i + u * stride) : make_uint4(0, 0, 0, 0);
    if (!waited) WaitForPrevious();
    waited = true;
#pragma unroll
    for (int u = 0; u < Unroll; ++u) bits ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
    i += Unroll * stride;
  } while (i < n);
  if (bits == 0x12345678u) *out = bits;
}

__device__ __forceinline__ uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

__device__ __forceinline__ float Normal(uint64_t seed, uint64_t i) {
  const uint64_t bits = Mix(seed * 0x100000001B3ull + i);
  const float u = (static_cast<float>(bits & 0xFFFFFFu) + 0.5f) * 0x1p-24f,
              v = static_cast<float>((bits >> 24) & 0xFFFFFFu) * 0x1p-24f;
  return sqrtf(-2.0f * logf(u)) * cospif(2.0f * v);
}

__global__ void FillNormalKernel(float* p, int64_t n, uint64_t seed, float scale) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride)
    p[i] = scale * Normal(seed, static_cast<uint64_t>(i));
}

// Makes normally distributed weights as a quantiser stores them (kRows): FP4 blocks with the largest value at 6, and
// scales as normal values have them. A thread makes 32 columns.
__global__ void FillWeightKernel(WeightFormat format, uint8_t* codes, uint8_t* scales, int64_t n, uint64_t seed) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t b = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; b < n / 32; b += stride) {
    float v[32];
    for (int i = 0; i < 32; ++i) v[i] = Normal(seed, static_cast<uint64_t>(b * 32 + i));
    if (format == WeightFormat::kBf16) {
      for (int i = 0; i < 32; ++i) reinterpret_cast<__nv_bfloat16*>(codes)[b * 32 + i] = __float2bfloat16(0.02f * v[i]);
    } else if (format == WeightFormat::kFp8Block) {
      for (int i = 0; i < 32; ++i) codes[b * 32 + i] = __nv_cvt_float_to_fp8(100.0f * v[i], __NV_SATFINITE, __NV_E4M3);
    } else {
      const int block = format == WeightFormat::kNvfp4 ? 16 : 32;
      for (int first = 0; first < 32; first += block) {
        float largest = 1e-6f;
        for (int i = first; i < first + block; ++i) largest = fmaxf(largest, fabsf(v[i]));
        float scale;
        if (format == WeightFormat::kNvfp4) {
          const uint8_t code = __nv_cvt_float_to_fp8(largest / 6.0f * (448.0f / 5.0f), __NV_SATFINITE, __NV_E4M3);
          scales[b * 2 + first / 16] = code;
          scale = __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3))) * (5.0f / 448.0f);
        } else {
          const int e = static_cast<int>(ceilf(log2f(largest / 6.0f)));
          scales[b] = static_cast<uint8_t>(e + 127 - 6);
          scale = exp2f(static_cast<float>(e));
        }
        for (int i = first; i < first + block; i += 2) {
          uint32_t pair = 0;
          for (int j = 0; j < 2; ++j) {
            const float a = fabsf(v[i + j]) / scale;
            const uint32_t code = (a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + (a > 2.5f) + (a > 3.5f) +
                                  (a > 5.0f);
            pair |= (code | (v[i + j] < 0 ? 8u : 0u)) << (4 * j);
          }
          codes[(b * 32 + i) / 2] = static_cast<uint8_t>(pair);
        }
      }
    }
  }
}

class Gpu {
 public:
  static constexpr int64_t kRotateBytes = int64_t{256} << 20;  // L2 has 50 MiB

  Gpu() {
    DSV4_BENCH_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    ctx_.device = DeviceKind::kCuda;
    ctx_.gpu = DescribeGpu();
    ctx_.stream = stream_;
    ctx_.scratch.bytes = int64_t{768} << 20;
    ctx_.scratch.data = static_cast<uint8_t*>(Allocate(ctx_.scratch.bytes));
    cudaDeviceProp p;
    DSV4_BENCH_CHECK(cudaGetDeviceProperties(&p, 0));
    int driver = 0, clock = 0;
    cudaDriverGetVersion(&driver);
    cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, 0);
    Line("machine")
        .Add("gpu", p.name)
        .Add("sms", p.multiProcessorCount)
        .Add("max_sm_mhz", clock / 1000)
        .Add("cuda_driver", driver)
        .Print();
  }

  ExecContext& ctx() { return ctx_; }

  void* Allocate(int64_t bytes) {
    void* p = nullptr;
    DSV4_BENCH_CHECK(cudaMalloc(&p, static_cast<size_t>(std::max<int64_t>(bytes, 256))));
    return p;
  }
  void Synchronize() { DSV4_BENCH_CHECK(cudaStreamSynchronize(stream_)); }

  // Returns the microseconds per launch: the median of replays of one CUDA graph of `launches` launches. work(ctx, i)
  // queues launch number i.
  double MedianUs(int launches, const std::function<void(const ExecContext&, int)>& work, int replays = 15) {
    DSV4_BENCH_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; ++i) work(ctx_, i);
    cudaGraph_t graph;
    DSV4_BENCH_CHECK(cudaStreamEndCapture(stream_, &graph));
    cudaGraphExec_t exec;
    DSV4_BENCH_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t begin, end;
    DSV4_BENCH_CHECK(cudaEventCreate(&begin));
    DSV4_BENCH_CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (int r = -2; r < replays; ++r) {
      DSV4_BENCH_CHECK(cudaEventRecord(begin, stream_));
      DSV4_BENCH_CHECK(cudaGraphLaunch(exec, stream_));
      DSV4_BENCH_CHECK(cudaEventRecord(end, stream_));
      DSV4_BENCH_CHECK(cudaEventSynchronize(end));
      float ms = 0;
      DSV4_BENCH_CHECK(cudaEventElapsedTime(&ms, begin, end));
      if (r >= 0) times.push_back(ms * 1000.0f / static_cast<float>(launches));
    }
    DSV4_BENCH_CHECK(cudaGetLastError());
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
    return static_cast<double>(times[times.size() / 2]);
  }

  // Returns the number of copies of `bytes` to rotate through; at most 512 launches per graph.
  static int Copies(int64_t bytes) {
    return static_cast<int>(std::clamp<int64_t>(kRotateBytes / std::max<int64_t>(bytes, 1) + 1, 3, 512));
  }

  // Returns the time of the fastest pure read of `bytes` bytes that are not in L2, as one launch among many, with the
  // context's launch attributes.
  double ReadLimitUs(int64_t bytes) {
    const auto key = std::pair(bytes, ctx_.overlap);
    if (const auto at = limits_.find(key); at != limits_.end()) return at->second;
    const int64_t n = bytes / 16, slot = (bytes + 255) / 256 * 256;
    const int copies = Copies(bytes);
    if (read_bytes_ < slot * copies) {
      read_bytes_ = slot * copies;
      if (read_ != nullptr) DSV4_BENCH_CHECK(cudaFree(read_));
      read_ = static_cast<uint8_t*>(Allocate(read_bytes_));
      FillNormalKernel<<<1024, 256, 0, stream_>>>(reinterpret_cast<float*>(read_), read_bytes_ / 4, 99, 1.0f);
    }
    uint32_t* out = reinterpret_cast<uint32_t*>(ctx_.scratch.data);
    double best = 1e30;
    for (const int blocks : {ctx_.gpu.multiprocessors, 2 * ctx_.gpu.multiprocessors, 4 * ctx_.gpu.multiprocessors}) {
      const auto with = [&](void (*kernel)(const uint4*, int64_t, uint32_t*)) {
        best = std::min(best, MedianUs(copies, [&](const ExecContext& ctx, int i) {
                          Launch(ctx, kernel, dim3(static_cast<unsigned>(blocks)), dim3(512), 0,
                                 reinterpret_cast<const uint4*>(read_ + i * slot), n, out);
                        }));
      };
      with(ReadKernel<2>);
      with(ReadKernel<4>);
      with(ReadKernel<8>);
    }
    return limits_[key] = best;
  }

 private:
  cudaStream_t stream_ = nullptr;
  ExecContext ctx_;
  uint8_t* read_ = nullptr;
  int64_t read_bytes_ = 0;
  std::map<std::pair<int64_t, bool>, double> limits_;
};

// Standard normal floats on the device.
class Floats {
 public:
  Floats(Gpu& gpu, int64_t n, float scale = 1.0f, uint64_t seed = 7) : data_(static_cast<float*>(gpu.Allocate(n * 4))) {
    FillNormalKernel<<<512, 256, 0, StreamOf(gpu.ctx())>>>(data_, n, seed, scale);
    gpu.Synchronize();
  }
  ~Floats() { cudaFree(data_); }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  float* data() const { return data_; }
  Tensor tensor(Shape shape) const { return {data_, DType::kF32, shape}; }

 private:
  float* data_;
};

// Copies of one packed random matrix, together more than Gpu::kRotateBytes.
class Weights {
 public:
  Weights(Gpu& gpu, WeightFormat format, int64_t rows, int64_t cols, int max_copies = 512) {
    QuantTensor w{.format = format, .rows = rows, .cols = cols};
    w.scale_dtype = DType::kF32;
    w.global_scale = format == WeightFormat::kNvfp4 ? 5.0f / 448.0f / std::sqrt(static_cast<float>(cols)) : 1.0f;
    const int64_t row_bytes = rows * w.row_bytes(), scale_bytes = std::max<int64_t>(rows * cols / 16, 256);
    uint8_t* codes = static_cast<uint8_t*>(gpu.Allocate(row_bytes));
    uint8_t* scales = static_cast<uint8_t*>(gpu.Allocate(scale_bytes));
    FillNormalKernel<<<64, 256, 0, StreamOf(gpu.ctx())>>>(reinterpret_cast<float*>(scales), scale_bytes / 4, 3, 1e-4f);
    w.codes = codes;
    w.block_scale = scales;
    if (IsTight(format)) {
      const float std = 1.0f / std::sqrt(static_cast<float>(cols));
      SetFillScales(&w, std);
      FillWeightCuda(gpu.ctx(), {.w = w, .codes = codes, .block_scale = scales, .seed = 11, .std = std});
    } else {
      FillWeightKernel<<<1024, 128, 0, StreamOf(gpu.ctx())>>>(format, codes, scales, rows * cols, 11);
    }
    code_bytes_ = PackedCodeBytes(w);
    scale_bytes_ = PackedScaleBytes(w);
    slot_ = (code_bytes_ + scale_bytes_ + 511) / 256 * 256;
    copies_ = std::min(max_copies, Gpu::Copies(code_bytes_ + scale_bytes_));
    data_ = static_cast<uint8_t*>(gpu.Allocate(slot_ * copies_));
    const PackWeightArgs args{.w = w, .codes = data_, .block_scale = data_ + (code_bytes_ + 255) / 256 * 256};
    PackWeightCuda(gpu.ctx(), args);
    for (int i = 1; i < copies_; ++i) {
      DSV4_BENCH_CHECK(cudaMemcpyAsync(data_ + i * slot_, data_, static_cast<size_t>(slot_), cudaMemcpyDeviceToDevice,
                                       StreamOf(gpu.ctx())));
    }
    gpu.Synchronize();
    cudaFree(codes);
    cudaFree(scales);
    packed_ = PackedView(args);
  }
  ~Weights() { cudaFree(data_); }
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  int copies() const { return copies_; }
  int64_t bytes() const { return code_bytes_ + scale_bytes_; }
  QuantTensor operator[](int i) const {
    QuantTensor w = packed_;
    w.codes += i % copies_ * slot_;
    w.block_scale += i % copies_ * slot_;
    return w;
  }

 private:
  QuantTensor packed_;
  uint8_t* data_ = nullptr;
  int64_t code_bytes_ = 0, scale_bytes_ = 0, slot_ = 0;
  int copies_ = 0;
};

}  // namespace dsv4::bench
