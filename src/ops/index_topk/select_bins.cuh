// Shared by the selections of select.cuh: keys of scores, and histograms of keys by a block or a cluster of blocks.
#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace dsv4::topk {

// Larger scores have larger keys. Zeros of either sign are equal. Only NaN is 0.
__device__ __forceinline__ uint32_t KeyOf(float score) {
  if (score != score) return 0;
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Sums over the threads before this one, in order.
template <int kThreads>
__device__ __forceinline__ int PrefixSum(int x, int* total) {
  constexpr int kWarps = kThreads / 32;
  __shared__ int warp_sum[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int before = x;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFFu, before, o);
    if (lane >= o) before += other;
  }
  __syncthreads();  // `warp_sum` may be in use
  if (lane == 31) warp_sum[warp] = before;
  __syncthreads();
  const int sum = lane < kWarps ? warp_sum[lane] : 0;
  int all = sum;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFFu, all, o);
    if (lane >= o) all += other;
  }
  *total = __shfl_sync(0xFFFFFFFFu, all, 31);
  const int of_warp = __shfl_sync(0xFFFFFFFFu, all - sum, warp);
  return of_warp + before - x;
}

constexpr int kBins = 2048;

// Finds the bin that holds the `wanted`-th key from the top of a histogram, and the number above it. The whole block
// calls it, after a barrier.
template <int kThreads>
__device__ __forceinline__ void FindBin(const int* histogram, int wanted, int* bin, int* above_bin) {
  constexpr int kPer = kBins / kThreads;
  __shared__ int found_bin, found_above;
  int own[kPer], sum = 0;  // thread i has the highest bins that no lower thread has
#pragma unroll
  for (int j = 0; j < kPer; ++j) sum += own[j] = histogram[kBins - 1 - kPer * static_cast<int>(threadIdx.x) - j];
  int unused;
  int above = PrefixSum<kThreads>(sum, &unused);
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    if (above < wanted && wanted <= above + own[j]) {
      found_bin = kBins - 1 - kPer * static_cast<int>(threadIdx.x) - j;
      found_above = above;
    }
    above += own[j];
  }
  __syncthreads();
  *bin = found_bin;
  *above_bin = found_above;
}

// Adds the blocks' histograms into `total` of each block: block `rank` adds its share of the bins for all.
template <int kCluster, int kThreads>
__device__ __forceinline__ void AddHistograms(int* histogram, int* total, int rank) {
  cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  constexpr int kShare = kBins / kCluster;
  for (int i = rank * kShare + static_cast<int>(threadIdx.x); i < (rank + 1) * kShare; i += kThreads) {
    int sum = 0;
#pragma unroll
    for (int r = 0; r < kCluster; ++r) sum += cluster.map_shared_rank(histogram, r)[i];
#pragma unroll
    for (int r = 0; r < kCluster; ++r) cluster.map_shared_rank(total, r)[i] = sum;
  }
}

// The number of candidates of all blocks that are greater than `own`, and the number that are not less.
template <int kCluster, int kMost>
__device__ __forceinline__ int2 RankOf(uint32_t own, const uint32_t (&candidates)[kCluster][kMost],
                                       const int (&counts)[kCluster]) {
  int greater = 0, not_less = 0;
  for (int r = 0; r < kCluster; ++r) {
    for (int i = 0; i < counts[r]; ++i) greater += candidates[r][i] > own, not_less += candidates[r][i] >= own;
  }
  return {greater, not_less};
}

}  // namespace dsv4::topk
