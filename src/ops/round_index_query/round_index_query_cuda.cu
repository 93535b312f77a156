#include "device/launch.cuh"
#include "kv/row_codec.cuh"
#include "ops/round_index_query/hadamard.cuh"
#include "ops/round_index_query/round_index_query.h"

namespace dsv4 {

namespace {

constexpr int kRoundIndexQueryThreads = 256;

// One warp per head: the rotation is in registers, and a block of 32 channels is one channel per lane.
template <int Parts>
__global__ void __launch_bounds__(kRoundIndexQueryThreads) RotateAndRoundKernel(float* q, int64_t heads) {
  AllowNext();
  WaitForPrevious();
  const int64_t head = (static_cast<int64_t>(blockIdx.x) * kRoundIndexQueryThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (head >= heads) return;
  float* row = q + head * 32 * Parts;
  float x[Parts];
#pragma unroll
  for (int j = 0; j < Parts; ++j) x[j] = row[lane + 32 * j];
  gpu::HadamardInRegisters(x, lane);
#pragma unroll
  for (int j = 0; j < Parts; ++j) {
    const int exponent = gpu::Fp4ScaleExponent(gpu::internal::LargestOfWarp(fabsf(x[j])));
    row[lane + 32 * j] = gpu::E2m1ToF32(gpu::F32ToE2m1(x[j] * gpu::Exp2Int(-exponent))) * gpu::Exp2Int(exponent);
  }
}

// Any power of two.
__global__ void __launch_bounds__(kRoundIndexQueryThreads)
    RotateAndRoundAnyKernel(float* q, int64_t heads, RowFormat f) {
  AllowNext();
  WaitForPrevious();
  const int64_t head = (static_cast<int64_t>(blockIdx.x) * kRoundIndexQueryThreads + threadIdx.x) / 32;
  if (head >= heads) return;
  gpu::HadamardWarp(q + head * f.dim, static_cast<int>(f.dim), threadIdx.x % 32);
  gpu::RoundRowWarp(f, q + head * f.dim, threadIdx.x % 32);
}

__global__ void __launch_bounds__(kRoundIndexQueryThreads) RoundBf16Kernel(float* x, int64_t n) {
  AllowNext();
  WaitForPrevious();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRoundIndexQueryThreads + threadIdx.x;
  if (i < n) x[i] = gpu::RoundToBf16(x[i]);
}

}  // namespace

void RoundIndexQueryCuda(const ExecContext& ctx, const RoundIndexQueryArgs& a) {
  if (a.dtype == IndexDtype::kF32) return;
  const int64_t heads = a.q.dim(0) * a.q.dim(1), di = a.q.dim(2);
  const auto blocks = [](int64_t threads) {
    return dim3(static_cast<unsigned>((threads + kRoundIndexQueryThreads - 1) / kRoundIndexQueryThreads));
  };
  if (a.dtype == IndexDtype::kBf16) {
    Launch(ctx, RoundBf16Kernel, blocks(heads * di), dim3(kRoundIndexQueryThreads), 0, a.q.f32(), heads * di);
  } else if (di == 128) {
    Launch(ctx, RotateAndRoundKernel<4>, blocks(heads * 32), dim3(kRoundIndexQueryThreads), 0, a.q.f32(), heads);
  } else if (di == 32) {
    Launch(ctx, RotateAndRoundKernel<1>, blocks(heads * 32), dim3(kRoundIndexQueryThreads), 0, a.q.f32(), heads);
  } else {
    Launch(ctx, RotateAndRoundAnyKernel, blocks(heads * 32), dim3(kRoundIndexQueryThreads), 0, a.q.f32(), heads,
           IndexKeyFormat(a.dtype, di));
  }
}

}  // namespace dsv4
