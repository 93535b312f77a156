#include <algorithm>

#include "device/launch.cuh"
#include "ops/activation_blocks.cuh"
#include "ops/swiglu/swiglu.h"
#include "ops/swiglu/swiglu_cuda.cuh"

namespace dsv4 {

namespace {

constexpr int kSwigluThreads = 256;

__global__ void __launch_bounds__(kSwigluThreads) SwigluKernel(const float* gate, const float* up, const float* weight,
                                                               float limit, float* y, int64_t rows, int64_t f) {
  AllowNext();
  WaitForPrevious();
  const int64_t column = int64_t{blockIdx.x} * kSwigluThreads + threadIdx.x;
  if (column >= f) return;
  for (int64_t r = blockIdx.y; r < rows; r += gridDim.y) {
    const int64_t i = r * f + column;
    const float value = SwigluValue(gate[i], up[i], limit);
    y[i] = weight == nullptr ? value : value * weight[r];
  }
}

// Writes blocks of FP16 numbers: a warp has four tokens x 64 columns, a lane 16 bytes of a block.
__global__ void __launch_bounds__(kSwigluThreads)
    SwigluBlocksKernel(const float* gate, const float* up, float limit, uint8_t* blocks, int rows, int f) {
  AllowNext();
  WaitForPrevious();
  const int lane = static_cast<int>(threadIdx.x % 32), row_blocks8 = (rows + 7) / 8;
  const int r = static_cast<int>(blockIdx.y) * 4 + lane / 8,
            column = (static_cast<int>(blockIdx.x) * (kSwigluThreads / 32) + static_cast<int>(threadIdx.x) / 32) * 64;
  if (r >= rows || column >= f) return;
  const int64_t from = static_cast<int64_t>(r) * f + column + 2 * (lane % 8);
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 g = *reinterpret_cast<const float2*>(gate + from + 16 * i),
                 u = *reinterpret_cast<const float2*>(up + from + 16 * i);
    pairs[i] = sm90::PackInputs<true>(SwigluValue(g.x, u.x, limit), SwigluValue(g.y, u.y, limit));
  }
  uint8_t* block = blocks + sm90::BlockBegin(column / 64, row_blocks8, r / 8);
  *reinterpret_cast<uint4*>(block + sm90::ActivationByte(r % 8, 2 * (lane % 8))) = make_uint4(pairs[0], pairs[1],
                                                                                              pairs[2], pairs[3]);
}

}  // namespace

void SwigluCuda(const ExecContext& ctx, const SwigluArgs& a) {
  const int64_t rows = a.gate.dim(0), f = a.gate.dim(1);
  if (a.y_blocks != nullptr) {
    const dim3 blocks(static_cast<unsigned>((f + 2 * kSwigluThreads - 1) / (2 * kSwigluThreads)),
                      static_cast<unsigned>((rows + 3) / 4));
    Launch(ctx, SwigluBlocksKernel, blocks, dim3(kSwigluThreads), 0, a.gate.f32(), a.up.f32(), a.limit, a.y_blocks,
           static_cast<int>(rows), static_cast<int>(f));
    return;
  }
  const dim3 grid(static_cast<unsigned>((f + kSwigluThreads - 1) / kSwigluThreads),
                  static_cast<unsigned>(std::min<int64_t>(rows, 32768)));
  Launch(ctx, SwigluKernel, grid, dim3(kSwigluThreads), 0, a.gate.f32(), a.up.f32(),
         a.weight ? a.weight.f32() : nullptr, a.limit, a.y.f32(), rows, f);
}

}  // namespace dsv4
