#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "device/launch.cuh"
#include "ops/block_reduce.cuh"
#include "ops/nvfp4_row.cuh"
#include "ops/round_activation/round_activation.h"

namespace dsv4 {

namespace {

constexpr int kRoundActivationThreads = 256;

// The arithmetic of tensor/codec/activation.h, operation by operation: results are bit-equal.

__device__ __forceinline__ float RoundToE4m3(float x) {  // saturates; NaN stays NaN
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3), __NV_E4M3)));
}

__device__ __forceinline__ float RoundToE2m1(float x) {
  const float a = fabsf(x);
  const float v = a <= 0.25f   ? 0.0f
                  : a < 0.75f  ? 0.5f
                  : a <= 1.25f ? 1.0f
                  : a < 1.75f  ? 1.5f
                  : a <= 2.5f  ? 2.0f
                  : a < 3.5f   ? 3.0f
                  : a <= 5.0f  ? 4.0f
                               : 6.0f;
  return copysignf(v, x);
}

__device__ __forceinline__ float Exp2OfCeilLog2(float x) {  // for x > 0; infinity stays infinity
  const uint32_t bits = __float_as_uint(x);
  return __uint_as_float((bits & 0x7F800000u) + ((bits & 0x7FFFFFu) != 0 ? 0x800000u : 0u));
}

// One warp per block of 128 columns.
__global__ void __launch_bounds__(kRoundActivationThreads)
    RoundFp8Kernel(const float* x, float* y, int64_t k_dim, int64_t num_blocks) {
  AllowNext();
  WaitForPrevious();
  const int64_t block = static_cast<int64_t>(blockIdx.x) * (kRoundActivationThreads / 32) + threadIdx.x / 32;
  if (block >= num_blocks) return;
  const int64_t across = (k_dim + 127) / 128, row = block / across, begin = (block - row * across) * 128;
  const float* in = x + row * k_dim;
  float* out = y + row * k_dim;
  float v[4];
  float largest = 1e-4f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t k = begin + 32 * i + threadIdx.x % 32;
    v[i] = k < k_dim ? in[k] : 0.0f;
    largest = fmaxf(largest, fabsf(v[i]));
  }
  const float scale = Exp2OfCeilLog2(WarpMax(largest) / 448.0f), inverse = 1.0f / scale;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t k = begin + 32 * i + threadIdx.x % 32;
    if (k < k_dim) out[k] = RoundToE4m3(v[i] * inverse) * scale;
  }
}

// One block per row: first the row's scale, then half a warp per block of 16 columns.
__global__ void __launch_bounds__(kRoundActivationThreads) RoundNvfp4Kernel(const float* x, float* y, int64_t k_dim) {
  AllowNext();
  WaitForPrevious();
  const float* in = x + blockIdx.x * k_dim;
  float* out = y + blockIdx.x * k_dim;
  const Nvfp4RowScale row = Nvfp4RowScaleOf<kRoundActivationThreads>(in, k_dim);
  if (row.empty()) {
    const float fill = row.has_nan ? __uint_as_float(0x7FC00000u) : 0.0f;
    for (int64_t k = threadIdx.x; k < k_dim; k += kRoundActivationThreads) out[k] = fill;
    return;
  }
  for (int64_t first = 0; first < k_dim; first += kRoundActivationThreads) {
    const int64_t k = first + threadIdx.x;
    const float v = k < k_dim ? in[k] : 0.0f;
    const float scale = RoundToE4m3(Nvfp4BlockScale(v, row.global)) * row.global;
    if (k < k_dim) out[k] = RoundToE2m1(v / scale) * scale;
  }
}

__global__ void __launch_bounds__(kRoundActivationThreads) CopyKernel(const float* x, float* y, int64_t n) {
  AllowNext();
  WaitForPrevious();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRoundActivationThreads + threadIdx.x;
  if (i < n) y[i] = x[i];
}

}  // namespace

void RoundActivationCuda(const ExecContext& ctx, const RoundActivationArgs& a) {
  const int64_t rows = a.x.dim(0), k_dim = a.x.dim(1);
  const auto blocks_of = [](int64_t n, int64_t each) { return dim3(static_cast<unsigned>((n + each - 1) / each)); };
  if (rows * k_dim == 0) return;
  switch (a.mode) {
    case ActivationDtype::kFp8: {
      const int64_t num_blocks = rows * ((k_dim + 127) / 128);
      Launch(ctx, RoundFp8Kernel, blocks_of(num_blocks, kRoundActivationThreads / 32), dim3(kRoundActivationThreads), 0,
             a.x.f32(), a.y.f32(), k_dim, num_blocks);
      return;
    }
    case ActivationDtype::kNvfp4:
      Launch(ctx, RoundNvfp4Kernel, dim3(static_cast<unsigned>(rows)), dim3(kRoundActivationThreads), 0, a.x.f32(),
             a.y.f32(), k_dim);
      return;
    case ActivationDtype::kNative:
    case ActivationDtype::kF32:
    case ActivationDtype::kInt8:  // round_activation.cc refuses these
    case ActivationDtype::kInt16:
    case ActivationDtype::kInt24:
      if (a.x.data == a.y.data) return;
      Launch(ctx, CopyKernel, blocks_of(rows * k_dim, kRoundActivationThreads), dim3(kRoundActivationThreads), 0,
             a.x.f32(), a.y.f32(), rows * k_dim);
      return;
  }
}

}  // namespace dsv4
