// The scale of a row of activations that a block rounds to NVFP4: the arithmetic of tensor/codec/activation.h,
// operation by operation.
#pragma once

#include <cstdint>

#include "ops/block_reduce.cuh"

namespace dsv4 {

struct Nvfp4RowScale {
  float global;
  bool has_nan;
  // If true, codes are zero; a NaN makes the whole row NaN.
  __device__ __forceinline__ bool empty() const { return has_nan || !(global >= 0x1p-126f); }
};

// The scale of `in` [k_dim]; called by all threads of a block.
template <int kThreads>
__device__ __forceinline__ Nvfp4RowScale Nvfp4RowScaleOf(const float* in, int64_t k_dim) {
  float largest = 0;
  int has_nan = 0;
  for (int64_t k = threadIdx.x; k < k_dim; k += kThreads) {
    largest = fmaxf(largest, fabsf(in[k]));
    has_nan |= in[k] != in[k];
  }
  largest = BlockMax<kThreads>(largest);
  has_nan = __syncthreads_or(has_nan);
  return {largest / (6.0f * 448.0f), has_nan != 0};
}

// A block's scale before it is rounded to E4M3. Half a warp has a block, each lane one value v.
__device__ __forceinline__ float Nvfp4BlockScale(float v, float global) {
  float largest = fabsf(v);
#pragma unroll
  for (int o = 8; o > 0; o /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, o));
  const float wanted = largest / (6.0f * global);
  return wanted < 0x1p-9f ? 0x1p-9f : wanted;
}

}  // namespace dsv4
