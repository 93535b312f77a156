#include <algorithm>

#include "device/launch.cuh"
#include "ops/gather_rows/gather_rows.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

constexpr int kGatherRowsThreads = 256, kPerThread = 4;

// A row outside x gives NaN.
__global__ void __launch_bounds__(kGatherRowsThreads)
    GatherRowsKernel(const float* x, const int32_t* rows, float* out, int64_t num_rows, int64_t width) {
  AllowNext();
  WaitForPrevious();
  const int64_t from = rows[blockIdx.y];
  const bool inside = from >= 0 && from < num_rows;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kGatherRowsThreads * kPerThread + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const int64_t i = first + k * kGatherRowsThreads;
    if (i < width) out[blockIdx.y * width + i] = inside ? x[from * width + i] : __int_as_float(0x7FFFFFFF);
  }
}

}  // namespace

void GatherRowsCuda(const ExecContext& ctx, const GatherRowsArgs& a) {
  const int64_t num_rows = a.rows.dim(0), kMostRows = 65535;
  if (num_rows == 0) return;
  const int64_t width = a.out.num_elements() / num_rows;
  for (int64_t done = 0; done < num_rows; done += kMostRows) {
    const dim3 grid(static_cast<unsigned>(CeilDiv(width, kGatherRowsThreads * kPerThread)),
                    static_cast<unsigned>(std::min(kMostRows, num_rows - done)));
    Launch(ctx, GatherRowsKernel, grid, dim3(kGatherRowsThreads), 0, a.x.f32(), a.rows.i32() + done,
           a.out.f32() + done * width, a.x.dim(0), width);
  }
}

}  // namespace dsv4
