#include "device/launch.cuh"
#include "kv/row_codec.cuh"
#include "ops/window_append/window_append.h"

namespace dsv4 {

namespace {

constexpr int kWindowAppendThreads = 256;

// One block per token of the step. Blocks do nothing if a later token of the sequence takes the same ring row, or if
// the sequence does not contain the token.
__global__ void __launch_bounds__(kWindowAppendThreads)
    WindowAppendKernel(const float* kv, LayerLayout layer, const SequenceView* sequences, const int32_t* sequence_of,
                       const int64_t* positions) {
  AllowNext();
  WaitForPrevious();
  const int64_t t = blockIdx.x;
  const SequenceView& s = sequences[sequence_of[t]];
  if (t < s.begin || t >= s.end || t < s.end - layer.window_slots) return;
  const gpu::RowPointer to = gpu::WindowRow(layer, s, positions[t]);
  gpu::EncodeRowWarp(layer.window_row, kv + t * layer.window_row.dim, to.data, to.scale, threadIdx.x % 32,
                     threadIdx.x / 32, kWindowAppendThreads / 32);
}

}  // namespace

void WindowAppendCuda(const ExecContext& ctx, const WindowAppendArgs& a) {
  Launch(ctx, WindowAppendKernel, dim3(static_cast<unsigned>(a.cache.num_tokens)), dim3(kWindowAppendThreads), 0,
         a.kv.f32(), *a.cache.layer, a.cache.sequences, a.cache.sequence_of, a.cache.positions);
}

}  // namespace dsv4
