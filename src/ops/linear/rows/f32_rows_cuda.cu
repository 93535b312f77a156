#include "ops/linear/rows/f32_rows.h"

#include <algorithm>

#include "base/check.h"
#include "device/launch.cuh"
#include "ops/block_reduce.cuh"

namespace dsv4 {

namespace {

constexpr int kF32RowsThreads = 256, kTokens = 4;

// F32 weights in the file's layout: one warp per row and four tokens, in float32 throughout.
__global__ void __launch_bounds__(kF32RowsThreads)
    F32LinearKernel(const float* x, const float* w, float* y, int num_tokens, int rows, int rows_per_group, int cols,
                    int64_t x_stride) {
  AllowNext();
  const int lane = threadIdx.x % 32,
            n = static_cast<int>(blockIdx.x) * (kF32RowsThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (n >= rows) return;
  WaitForPrevious();
  const float* row = w + static_cast<int64_t>(n) * cols;
  for (int first = static_cast<int>(blockIdx.y) * kTokens; first < num_tokens;
       first += static_cast<int>(gridDim.y) * kTokens) {
    float sum[kTokens] = {};
    const float* in = x + first * x_stride + static_cast<int64_t>(n / rows_per_group) * cols;
    for (int k = lane; k < cols; k += 32) {
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        if (first + i < num_tokens) sum[i] = fmaf(in[i * x_stride + k], row[k], sum[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const float total = WarpSum(sum[i]);
      if (lane == 0 && first + i < num_tokens) y[static_cast<int64_t>(first + i) * rows + n] = total;
    }
  }
}

}  // namespace

void F32Linear(const ExecContext& ctx, const LinearArgs& a, const LinearPart& part) {
  const QuantTensor& w = part.w;
  const int64_t num_tokens = a.x.dim(0);
  if (num_tokens == 0 || w.rows == 0) return;
  DSV4_CHECK(w.layout == WeightLayout::kRows);
  const dim3 grid(static_cast<unsigned>(CeilDiv(w.rows, kF32RowsThreads / 32)),
                  static_cast<unsigned>(std::min<int64_t>(CeilDiv(num_tokens, kTokens), 1024)));
  Launch(ctx, F32LinearKernel, grid, dim3(kF32RowsThreads), 0, a.x.f32(), reinterpret_cast<const float*>(w.codes),
         part.y.f32(), static_cast<int>(num_tokens), static_cast<int>(w.rows), static_cast<int>(w.rows / a.groups),
         static_cast<int>(w.cols), a.groups * w.cols);
}

}  // namespace dsv4
