// The arithmetic of the choice of experts (router.h), for the kernels.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace dsv4::router {

__device__ __forceinline__ float SqrtSoftplus(float z) { return sqrtf(z > 20.0f ? z : log1pf(expf(z))); }

// The order of the floats; both zeros are equal, a NaN is the smallest. Never 0, which marks a taken key.
__device__ __forceinline__ uint32_t OrderedKey(float x) {
  if (x != x) return 1;
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Finds the warp's `count` largest keys, ties to the smaller index; lane i gets the i-th (key 0: none). Every lane
// passes N candidates, whose indices are in ascending order.
template <int N>
__device__ __forceinline__ void WarpLargest(uint32_t (&key)[N], const int (&index)[N], int count, uint32_t& my_key,
                                            int& my_index) {
  const int lane = threadIdx.x % 32;
  my_key = 0, my_index = 0;
  for (int a = 0; a < count; ++a) {
    uint32_t best = key[0];
    int at = index[0];
#pragma unroll
    for (int i = 1; i < N; ++i) {
      if (key[i] > best) best = key[i], at = index[i];  // the first of equals
    }
    const uint32_t top = __reduce_max_sync(0xFFFFFFFFu, best);
    const int chosen = static_cast<int>(
        __reduce_min_sync(0xFFFFFFFFu, best == top ? static_cast<unsigned>(at) : 0x7FFFFFFFu));
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (index[i] == chosen) key[i] = 0;
    }
    if (lane == a) my_key = top, my_index = chosen;
  }
}

// The weight of lane i's expert, i < count, from its score; other lanes pass 0.
__device__ __forceinline__ float WarpWeight(float score, int count, float scaling) {
  float sum = 0;
  for (int a = 0; a < count; ++a) sum += __shfl_sync(0xFFFFFFFFu, score, a);
  // 1e-20: otherwise scores that all underflow to 0 give 0/0 (docs/dev/model.md).
  return score / (sum + 1e-20f) * scaling;
}

}  // namespace dsv4::router
