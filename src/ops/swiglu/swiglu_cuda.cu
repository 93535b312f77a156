#include <algorithm>

#include "device/launch.cuh"
#include "ops/swiglu/swiglu.h"
#include "ops/swiglu/swiglu_cuda.cuh"

namespace dsv4 {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) SwigluKernel(const float* gate, const float* up, const float* weight, float limit,
                                                         float* y, int64_t rows, int64_t f) {
  AllowNext();
  WaitForPrevious();
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= f) return;
  for (int64_t r = blockIdx.y; r < rows; r += gridDim.y) {
    const int64_t i = r * f + column;
    const float value = SwigluValue(gate[i], up[i], limit);
    y[i] = weight == nullptr ? value : value * weight[r];
  }
}

}  // namespace

void SwigluCuda(const ExecContext& ctx, const SwigluArgs& a) {
  const int64_t rows = a.gate.dim(0), f = a.gate.dim(1);
  const dim3 grid(static_cast<unsigned>((f + kThreads - 1) / kThreads), static_cast<unsigned>(std::min<int64_t>(rows, 32768)));
  Launch(ctx, SwigluKernel, grid, dim3(kThreads), 0, a.gate.f32(), a.up.f32(), a.weight ? a.weight.f32() : nullptr, a.limit,
         a.y.f32(), rows, f);
}

}  // namespace dsv4
