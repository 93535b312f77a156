#include <algorithm>

#include "device/launch.cuh"
#include "ops/stream_mean/stream_mean.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

constexpr int kStreamMeanThreads = 256;

__global__ void __launch_bounds__(kStreamMeanThreads)
    StreamMeanKernel(const float* streams, float* out, int64_t h, int64_t d, int64_t width) {
  AllowNext();
  WaitForPrevious();
  const int64_t t = blockIdx.y, column = static_cast<int64_t>(blockIdx.x) * kStreamMeanThreads + threadIdx.x;
  if (column >= d) return;
  const float* from = streams + t * h * d + column;
  float sum = from[0];
  for (int64_t k = 1; k < h; ++k) sum = __fadd_rn(sum, from[k * d]);
  out[t * width + column] = __fdiv_rn(sum, static_cast<float>(h));
}

}  // namespace

void StreamMeanCuda(const ExecContext& ctx, const StreamMeanArgs& a) {
  const int64_t num_tokens = a.streams.dim(0), h = a.streams.dim(1), d = a.streams.dim(2), kMostRows = 65535;
  const int64_t width = a.out.dim(1);
  for (int64_t done = 0; done < num_tokens; done += kMostRows) {
    const dim3 grid(static_cast<unsigned>(CeilDiv(d, kStreamMeanThreads)),
                    static_cast<unsigned>(std::min(kMostRows, num_tokens - done)));
    Launch(ctx, StreamMeanKernel, grid, dim3(kStreamMeanThreads), 0, a.streams.f32() + done * h * d,
           a.out.f32() + done * width + a.first, h, d, width);
  }
}

}  // namespace dsv4
