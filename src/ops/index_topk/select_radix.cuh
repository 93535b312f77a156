// Exact top-k of any row of scores by radix selection: three histograms of 11, 11 and 10 bits of the keys.
#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "ops/index_topk/select_bins.cuh"

namespace dsv4::topk {

// The first histogram of a radix selection, over the keys' highest bits. Keeps the keys if there is room.
template <int kThreads>
__device__ __forceinline__ void CountHighest(const float* score, int count, int shift, bool is_cached, uint32_t* cached,
                                             int* histogram) {
  constexpr int kUnroll = 4;
  for (int first = threadIdx.x; first < count; first += kUnroll * kThreads) {
    float x[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) x[u] = first + u * kThreads < count ? score[first + u * kThreads] : 0.0f;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = first + u * kThreads;
      if (i >= count) break;
      const uint32_t key = KeyOf(x[u]);
      if (is_cached) cached[i] = key;
      atomicAdd(&histogram[key >> shift], 1);
    }
  }
}

// Writes the rows of a warp's run [begin, end) with keys above `prefix`, and the first `wanted` rows with keys equal to
// it, after the rows of earlier threads.
template <typename KeyAt>
__device__ __forceinline__ void WriteChosen(const KeyAt& key_at, int begin, int end, uint32_t prefix, int wanted,
                                            int above_before, int equal_before, int first_row, int32_t* row_out) {
  const int lane = threadIdx.x % 32;
  for (int i = begin; i < end; i += 32) {
    const uint32_t key = i + lane < end ? key_at(i + lane) : 0;
    const bool is_above = i + lane < end && key > prefix, is_equal = i + lane < end && key == prefix;
    const uint32_t above_mask = __ballot_sync(0xFFFFFFFFu, is_above), equal_mask = __ballot_sync(0xFFFFFFFFu, is_equal);
    const uint32_t lower = (1u << lane) - 1;
    const int rank_above = above_before + __popc(above_mask & lower),
              rank_equal = equal_before + __popc(equal_mask & lower);
    if (is_above || (is_equal && rank_equal < wanted))
      row_out[rank_above + min(rank_equal, wanted)] = first_row + i + lane;
    above_before += __popc(above_mask);
    equal_before += __popc(equal_mask);
  }
}

// The number of keys of a warp's run [begin, end) above `prefix`, and the number equal to it.
template <typename KeyAt>
__device__ __forceinline__ int2 CountChosen(const KeyAt& key_at, int begin, int end, uint32_t prefix) {
  const int lane = threadIdx.x % 32;
  int above = 0, equal = 0;
  for (int i = begin; i < end; i += 32) {
    const uint32_t key = i + lane < end ? key_at(i + lane) : 0;
    above += __popc(__ballot_sync(0xFFFFFFFFu, i + lane < end && key > prefix));
    equal += __popc(__ballot_sync(0xFFFFFFFFu, i + lane < end && key == prefix));
  }
  return {above, equal};
}

// Any number of rows by a cluster: block `rank` has rows [rank * run, ...). Keys are kept in shared memory if they fit,
// else computed again from the scores in every pass.
template <int kCluster, int kThreads>
__device__ __forceinline__ void SelectByRadix(const float* scores, int n, int k, int rank, int cached_keys,
                                              uint32_t* cached, int* histogram, int* total, int2* counts,
                                              int32_t* row_out) {
  namespace cg = cooperative_groups;
  const int run = (n + kCluster * 32 - 1) / (kCluster * 32) * 32, begin = min(n, rank * run),
            count = min(run, n - begin);
  const float* score = scores + begin;
  const bool is_cached = run <= cached_keys;
  const auto key_at = [&](int i) { return is_cached ? cached[i] : KeyOf(score[i]); };
  const auto sync = [&] {
    if constexpr (kCluster > 1)
      cg::this_cluster().sync();
    else
      __syncthreads();
  };

  for (int i = threadIdx.x; i < kBins; i += kThreads) histogram[i] = 0;
  __syncthreads();
  uint32_t prefix = 0, mask = 0;  // the k-th largest key's bits known so far
  int wanted = k;                 // its rank among the keys with those bits, from the top
#pragma unroll
  for (int pass = 0; pass < 3; ++pass) {
    const int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0, bins = pass == 2 ? 1024 : 2048;
    if (pass == 0) {
      CountHighest<kThreads>(score, count, shift, is_cached, cached, histogram);
    } else {
      for (int i = threadIdx.x; i < count; i += kThreads) {
        const uint32_t key = key_at(i);
        if ((key & mask) == prefix) atomicAdd(&histogram[(key >> shift) & (bins - 1)], 1);
      }
    }
    sync();
    if constexpr (kCluster > 1) {
      AddHistograms<kCluster, kThreads>(histogram, total, rank);
      sync();
    }
    int found_bin, found_above;
    FindBin<kThreads>(kCluster > 1 ? total : histogram, wanted, &found_bin, &found_above);
    for (int i = threadIdx.x; i < kBins; i += kThreads) histogram[i] = 0;
    prefix |= static_cast<uint32_t>(found_bin) << shift;
    mask |= static_cast<uint32_t>(bins - 1) << shift;
    wanted -= found_above;
    __syncthreads();
  }

  // Chooses keys above `prefix` and the first `wanted` equal to it. A warp owns a run of rows.
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int per_warp = (count + kThreads - 1) / kThreads * 32, warp_begin = warp * per_warp,
            warp_end = min(count, warp_begin + per_warp);
  const int2 own = CountChosen(key_at, warp_begin, warp_end, prefix);
  int2 all_counts;
  int above_before = PrefixSum<kThreads>(lane == 0 ? own.x : 0, &all_counts.x);
  int equal_before = PrefixSum<kThreads>(lane == 0 ? own.y : 0, &all_counts.y);
  above_before = __shfl_sync(0xFFFFFFFFu, above_before, 0);
  equal_before = __shfl_sync(0xFFFFFFFFu, equal_before, 0);
  if constexpr (kCluster > 1) {
    if (threadIdx.x < kCluster) cg::this_cluster().map_shared_rank(counts, threadIdx.x)[rank] = all_counts;
    sync();  // after the last access to another block's memory
    for (int r = 0; r < rank; ++r) above_before += counts[r].x, equal_before += counts[r].y;
  }
  WriteChosen(key_at, warp_begin, warp_end, prefix, wanted, above_before, equal_before, begin, row_out);
}

}  // namespace dsv4::topk
