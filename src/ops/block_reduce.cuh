// Sums and maxima over a block in a fixed order: lanes by a butterfly, then warps in order.
#pragma once

#include <cuda_runtime.h>

namespace dsv4 {

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, o);
  return x;
}

__device__ __forceinline__ float WarpMax(float x) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, o));
  return x;
}

// Every thread of the block gets the sum. Threads must be a multiple of 32.
template <int Threads>
__device__ __forceinline__ float BlockSum(float x) {
  __shared__ float part[Threads / 32];
  x = WarpSum(x);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Threads / 32; ++i) sum += part[i];
  __syncthreads();  // `part` may be used again
  return sum;
}

template <int Threads>
__device__ __forceinline__ float BlockMax(float x) {
  __shared__ float part[Threads / 32];
  x = WarpMax(x);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  float largest = part[0];
#pragma unroll
  for (int i = 1; i < Threads / 32; ++i) largest = fmaxf(largest, part[i]);
  __syncthreads();
  return largest;
}

}  // namespace dsv4
