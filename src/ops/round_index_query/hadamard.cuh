// The Walsh-Hadamard rotation of hadamard.h by one warp, with the same additions in the same order, so the bits equal
// the CPU's.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace dsv4::gpu {

// x: f32 [n] that the whole warp can read and write (shared or global memory), n a power of two; in place.
__device__ inline void HadamardWarp(float* x, int n, int lane) {
  for (int half = 1; half < n; half *= 2) {
    __syncwarp();
    for (int pair = lane; pair < n / 2; pair += 32) {
      const int i = (pair / half) * 2 * half + pair % half;
      const float a = x[i], b = x[i + half];
      x[i] = __fadd_rn(a, b);
      x[i + half] = __fsub_rn(a, b);
    }
  }
  __syncwarp();
  const float scale = static_cast<float>(1.0 / sqrt(static_cast<double>(n)));
  for (int i = lane; i < n; i += 32) x[i] = __fmul_rn(x[i], scale);
  __syncwarp();
}

// The same with channel lane + 32 * j in x[j], n = 32 * Parts.
template <int Parts>
__device__ __forceinline__ void HadamardInRegisters(float (&x)[Parts], int lane) {
#pragma unroll
  for (int half = 1; half < 32; half *= 2) {
#pragma unroll
    for (int j = 0; j < Parts; ++j) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, x[j], half);
      x[j] = (lane & half) ? __fsub_rn(other, x[j]) : __fadd_rn(x[j], other);
    }
  }
#pragma unroll
  for (int half = 1; half < Parts; half *= 2) {
#pragma unroll
    for (int j = 0; j < Parts; ++j) {
      if (j & half) continue;
      const float a = x[j], b = x[j + half];
      x[j] = __fadd_rn(a, b);
      x[j + half] = __fsub_rn(a, b);
    }
  }
  const float scale = static_cast<float>(1.0 / sqrt(static_cast<double>(32 * Parts)));
#pragma unroll
  for (int j = 0; j < Parts; ++j) x[j] = __fmul_rn(x[j], scale);
}

}  // namespace dsv4::gpu
