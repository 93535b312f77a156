#include "device/launch.cuh"
#include "ops/block_reduce.cuh"
#include "ops/rms_norm/rms_norm.h"

namespace dsv4 {

namespace {

constexpr int kRmsNormThreads = 256;

// One block per row. The order of the sum depends on D only.
__global__ void __launch_bounds__(kRmsNormThreads)
    RmsNormKernel(const float* x, const float* weight, float* y, int64_t d, float eps) {
  AllowNext();
  // The weights may not be in L2, and x is not available yet.
  for (int64_t i = 32 * static_cast<int64_t>(threadIdx.x); weight != nullptr && i < d; i += 32 * kRmsNormThreads) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(weight + i));
  }
  WaitForPrevious();
  const float* row = x + blockIdx.x * d;
  float* out = y + blockIdx.x * d;
  float square = 0;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < d; i += kRmsNormThreads) square += row[i] * row[i];
  square = BlockSum<kRmsNormThreads>(square);
  const float scale = rsqrtf(square / static_cast<float>(d) + eps);
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < d; i += kRmsNormThreads) out[i] = row[i] * scale * (weight ? weight[i] : 1.0f);
}

}  // namespace

void RmsNormCuda(const ExecContext& ctx, const RmsNormArgs& a) {
  Launch(ctx, RmsNormKernel, dim3(static_cast<unsigned>(a.x.dim(0))), dim3(kRmsNormThreads), 0, a.x.f32(),
         a.weight ? a.weight.f32() : nullptr, a.y.f32(), a.x.dim(1), a.eps);
}

}  // namespace dsv4
