#include <algorithm>

#include "device/launch.cuh"
#include "ops/previous_rows/previous_rows.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

constexpr int kPreviousRowsThreads = 128;

// A thread processes one column of a sequence's tokens in order, so it has read the ring before it writes there.
__global__ void __launch_bounds__(kPreviousRowsThreads)
    PreviousRowsKernel(const float* x, float* y, const SequenceView* sequences, int64_t offset, int64_t slots,
                       int64_t width) {
  AllowNext();
  WaitForPrevious();
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kPreviousRowsThreads + threadIdx.x;
  if (column >= width) return;
  const SequenceView seq = sequences[blockIdx.y];
  float* ring = reinterpret_cast<float*>(seq.fixed + offset) + column;
  float before = seq.start > 0 && seq.begin < seq.end && y != nullptr ? ring[(seq.start - 1) % slots * width] : 0.0f;
#pragma unroll 8
  for (int64_t t = seq.begin; t < seq.end; ++t) {
    const float own = x != nullptr ? x[t * width + column] : 0.0f;
    if (y != nullptr) y[t * width + column] = before;
    if (x != nullptr && t >= seq.end - slots) ring[(seq.start + t - seq.begin) % slots * width] = own;
    before = own;
  }
}

}  // namespace

void PreviousRowsCuda(const ExecContext& ctx, const PreviousRowsArgs& a) {
  const Tensor& any = a.x ? a.x : a.y;
  if (any.dim(0) == 0 || a.num_sequences == 0) return;
  const int64_t width = any.num_elements() / any.dim(0);
  const dim3 grid(static_cast<unsigned>(CeilDiv(width, kPreviousRowsThreads)), static_cast<unsigned>(a.num_sequences));
  Launch(ctx, PreviousRowsKernel, grid, dim3(kPreviousRowsThreads), 0, a.x ? a.x.f32() : nullptr,
         a.y ? a.y.f32() : nullptr, a.sequences, a.offset, a.slots, width);
}

}  // namespace dsv4
