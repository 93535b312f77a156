// Exact top-k of a row of scores by one block: the value of the k-th largest by radix selection (three histograms of 11,
// 11 and 10 bits of an order-preserving integer), then one pass in row order. What it chooses is select.h's choice.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace dsv4::topk {

constexpr int kThreads = 1024, kWarps = kThreads / 32;

// Larger scores have larger keys; zeros of either sign are equal, NaN is 0 and nothing else is.
__device__ __forceinline__ uint32_t KeyOf(float score) {
  if (score != score) return 0;
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Sums over the threads before this one, in order, and the sum over all.
__device__ __forceinline__ int PrefixSum(int x, int* total) {
  __shared__ int warp_sum[kWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int before = x;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFFu, before, o);
    if (lane >= o) before += other;
  }
  __syncthreads();
  if (lane == 31) warp_sum[warp] = before;
  __syncthreads();
  int sum = warp_sum[lane], all = sum;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFFu, all, o);
    if (lane >= o) all += other;
  }
  *total = __shfl_sync(0xFFFFFFFFu, all, 31);
  const int of_warp = __shfl_sync(0xFFFFFFFFu, all - sum, warp);
  return of_warp + before - x;
}

// out[0, min(n, k)) = the chosen rows in ascending order, then -1 up to k. Every thread of the block takes part.
__device__ __forceinline__ void SelectBlock(const float* score, int n, int k, int32_t* out) {
  if (n <= k) {
    for (int i = threadIdx.x; i < k; i += kThreads) out[i] = i < n ? i : -1;
    return;
  }
  __shared__ int histogram[2048];
  __shared__ int found_bin, found_above;
  uint32_t prefix = 0, mask = 0;  // the k-th largest key's bits known so far
  int wanted = k;                 // its rank among the keys with those bits, from the top
#pragma unroll
  for (int pass = 0; pass < 3; ++pass) {
    const int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0, bins = pass == 2 ? 1024 : 2048;
    for (int i = threadIdx.x; i < 2048; i += kThreads) histogram[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += kThreads) {
      const uint32_t key = KeyOf(score[i]);
      if ((key & mask) == prefix) atomicAdd(&histogram[(key >> shift) & (bins - 1)], 1);
    }
    __syncthreads();
    // Thread i has the two highest bins not in a lower thread's hands.
    const int high = 2047 - 2 * static_cast<int>(threadIdx.x), low = high - 1;
    const int in_high = histogram[high], in_low = histogram[low];
    int total;
    const int above = PrefixSum(in_high + in_low, &total);
    if (above < wanted && wanted <= above + in_high) found_bin = high, found_above = above;
    if (above + in_high < wanted && wanted <= above + in_high + in_low) found_bin = low, found_above = above + in_high;
    __syncthreads();
    prefix |= static_cast<uint32_t>(found_bin) << shift;
    mask |= static_cast<uint32_t>(bins - 1) << shift;
    wanted -= found_above;
  }
  // Keys above `prefix` and the first `wanted` equal to it. A warp owns a run of rows.
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int per_warp = (n + kThreads - 1) / kThreads * 32, begin = warp * per_warp, end = min(n, begin + per_warp);
  int above = 0, equal = 0;
  for (int i = begin; i < end; i += 32) {
    const uint32_t key = i + lane < end ? KeyOf(score[i + lane]) : 0;
    above += __popc(__ballot_sync(0xFFFFFFFFu, i + lane < end && key > prefix));
    equal += __popc(__ballot_sync(0xFFFFFFFFu, i + lane < end && key == prefix));
  }
  int total;
  int above_before = PrefixSum(lane == 0 ? above : 0, &total), equal_before = PrefixSum(lane == 0 ? equal : 0, &total);
  above_before = __shfl_sync(0xFFFFFFFFu, above_before, 0);
  equal_before = __shfl_sync(0xFFFFFFFFu, equal_before, 0);
  for (int i = begin; i < end; i += 32) {
    const uint32_t key = i + lane < end ? KeyOf(score[i + lane]) : 0;
    const bool is_above = i + lane < end && key > prefix, is_equal = i + lane < end && key == prefix;
    const uint32_t above_mask = __ballot_sync(0xFFFFFFFFu, is_above), equal_mask = __ballot_sync(0xFFFFFFFFu, is_equal);
    const uint32_t lower = (1u << lane) - 1;
    const int rank_above = above_before + __popc(above_mask & lower), rank_equal = equal_before + __popc(equal_mask & lower);
    if (is_above || (is_equal && rank_equal < wanted)) out[rank_above + min(rank_equal, wanted)] = i + lane;
    above_before += __popc(above_mask);
    equal_before += __popc(equal_mask);
  }
}

}  // namespace dsv4::topk
