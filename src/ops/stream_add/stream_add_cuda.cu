#include <algorithm>

#include "device/launch.cuh"
#include "ops/stream_add/stream_add.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

constexpr int kStreamAddThreads = 256;

__global__ void __launch_bounds__(kStreamAddThreads)
    StreamAddKernel(const float* y, float* streams, int64_t h, int64_t d) {
  AllowNext();
  WaitForPrevious();
  const int64_t t = blockIdx.y, column = static_cast<int64_t>(blockIdx.x) * kStreamAddThreads + threadIdx.x;
  if (column >= d) return;
  const float x = y[t * d + column];
  for (int64_t k = 0; k < h; ++k) streams[(t * h + k) * d + column] += x;
}

}  // namespace

void StreamAddCuda(const ExecContext& ctx, const StreamAddArgs& a) {
  const int64_t num_tokens = a.streams.dim(0), h = a.streams.dim(1), d = a.streams.dim(2), kMostRows = 65535;
  for (int64_t done = 0; done < num_tokens; done += kMostRows) {
    const dim3 grid(static_cast<unsigned>(CeilDiv(d, kStreamAddThreads)),
                    static_cast<unsigned>(std::min(kMostRows, num_tokens - done)));
    Launch(ctx, StreamAddKernel, grid, dim3(kStreamAddThreads), 0, a.y.f32() + done * d, a.streams.f32() + done * h * d,
           h, d);
  }
}

}  // namespace dsv4
