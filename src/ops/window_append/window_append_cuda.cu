#include "device/launch.cuh"
#include "kv/row_codec.cuh"
#include "ops/window_append/window_append.h"

namespace dsv4 {

namespace {

constexpr int kThreads = 128;

// One warp a token of the step; those that later tokens of their sequence push out of the window do nothing.
__global__ void __launch_bounds__(kThreads)
    WindowAppendKernel(const float* kv, LayerLayout layer, int64_t window, const SequenceView* sequences,
                       const int32_t* sequence_of, const int64_t* positions, int64_t num_tokens) {
  AllowNext();
  WaitForPrevious();
  const int64_t t = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (t >= num_tokens) return;
  const SequenceView& s = sequences[sequence_of[t]];
  if (t < s.end - window) return;
  const gpu::RowPointer to = gpu::WindowRow(layer, window, s, positions[t]);
  gpu::EncodeRowWarp(layer.window_row, kv + t * layer.window_row.dim, to.data, to.scale, threadIdx.x % 32);
}

}  // namespace

void WindowAppendCuda(const ExecContext& ctx, const WindowAppendArgs& a) {
  const int64_t t = a.cache.num_tokens;
  Launch(ctx, WindowAppendKernel, dim3(static_cast<unsigned>((t * 32 + kThreads - 1) / kThreads)), dim3(kThreads), 0, a.kv.f32(),
         *a.cache.layer, a.cache.window, a.cache.sequences, a.cache.sequence_of, a.cache.positions, t);
}

}  // namespace dsv4
