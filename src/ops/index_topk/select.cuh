// Exact top-k of a row of scores, with the result of select.h. A block or a cluster of blocks uses one histogram and a
// few candidates (SelectFast). If that does not decide, it uses radix selection (select_radix.cuh).
#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "device/barrier.cuh"
#include "device/launch.cuh"
#include "ops/index_topk/select_bins.cuh"
#include "ops/index_topk/select_radix.cuh"

namespace dsv4::topk {

__device__ __forceinline__ float ScoreOf(uint32_t key) {  // for a key that is not NaN's
  return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

// Writes the keys of a block's rows to shared memory, and returns a thread's smallest and largest key of a finite
// score. The scores are aligned to 16 bytes.
template <int kThreads>
__device__ __forceinline__ void LoadKeys(const float* score, int n, uint32_t* cached, uint32_t* smallest_key,
                                         uint32_t* largest_key) {
  uint32_t smallest = 0xFFFFFFFFu, largest = 0;
  const auto add = [&](float x) {
    const uint32_t key = KeyOf(x);
    if (key >= 0x00800000u && key < 0xFF800000u) {  // finite: -inf is 0x007FFFFF, inf 0xFF800000
      smallest = min(smallest, key);
      largest = max(largest, key);
    }
    return key;
  };
  constexpr int kUnroll = 4;
  int first = 4 * static_cast<int>(threadIdx.x);
  for (; first + 3 < n; first += kUnroll * 4 * kThreads) {
    float4 x[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * 4 * kThreads + 3 < n) x[u] = *reinterpret_cast<const float4*>(score + first + u * 4 * kThreads);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = first + u * 4 * kThreads;
      if (i + 3 >= n) break;
      *reinterpret_cast<uint4*>(cached + i) = make_uint4(add(x[u].x), add(x[u].y), add(x[u].z), add(x[u].w));
    }
  }
  if (static_cast<int>(threadIdx.x) < n % 4) cached[n / 4 * 4 + threadIdx.x] = add(score[n / 4 * 4 + threadIdx.x]);
  *smallest_key = smallest;
  *largest_key = largest;
}

// The extremes over all threads. Contains a barrier.
template <int kThreads>
__device__ __forceinline__ void BlockExtremes(uint32_t* smallest, uint32_t* largest) {
  constexpr int kWarps = kThreads / 32;
  __shared__ uint32_t extreme[2][kWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  *smallest = __reduce_min_sync(0xFFFFFFFFu, *smallest);
  *largest = __reduce_max_sync(0xFFFFFFFFu, *largest);
  if (lane == 0) extreme[0][warp] = *smallest, extreme[1][warp] = *largest;
  __syncthreads();
  *smallest = __reduce_min_sync(0xFFFFFFFFu, lane < kWarps ? extreme[0][lane] : 0xFFFFFFFFu);
  *largest = __reduce_max_sync(0xFFFFFFFFu, lane < kWarps ? extreme[1][lane] : 0u);
}

// Bins of equal steps between two finite scores; never decreasing with the score. Halves keep the difference finite.
struct Steps {
  __device__ Steps(uint32_t smallest_key, uint32_t largest_key) : smallest(smallest_key), largest(largest_key) {
    low = 0.5f * ScoreOf(smallest);
    step = static_cast<float>(kBins - 1) / (0.5f * ScoreOf(largest) - low);
  }
  __device__ bool ok() const { return step < 1e30f; }
  __device__ int operator()(uint32_t key) const {
    if (key < smallest) return 0;
    if (key > largest) return kBins - 1;
    // A number below 2^23 that is added to 2^23 is rounded to a whole number: cheaper than a conversion.
    constexpr float kWhole = 8388608.0f;
    return min(__float_as_int(fmaf(0.5f * ScoreOf(key) - low, step, kWhole)) - __float_as_int(kWhole), kBins - 1);
  }
  uint32_t smallest, largest;
  float low, step;
};

// Writes a word per 32 keys: bit i says whether key i is at least `least`.
template <int kThreads>
__device__ __forceinline__ void MarkChosen(const uint32_t* cached, int n, uint32_t least, uint32_t* bits) {
  for (int w = threadIdx.x / 32; w < (n + 31) / 32; w += kThreads / 32) {
    const int i = 32 * w + static_cast<int>(threadIdx.x % 32);
    const uint32_t chosen = __ballot_sync(0xFFFFFFFFu, i < n && cached[i] >= least);
    if (threadIdx.x % 32 == 0) bits[w] = chosen;
  }
  __syncthreads();
}

// One block, rows in shared memory, n <= 32 kThreads. A histogram over equal steps between the smallest and the largest
// finite score leaves a few candidates, which are ranked against each other. Returns false (for all threads), with
// nothing written, if there are too many candidates, or if only the row decides between equal scores.
template <int kThreads>
__device__ __forceinline__ bool SelectFast(const float* score, uint32_t* cached, int* histogram, int n, int k,
                                           int32_t* out) {
  constexpr int kMaxCandidates = 256;
  __shared__ uint32_t candidates[kMaxCandidates];
  __shared__ uint32_t bits[kThreads];
  __shared__ int num_candidates, threshold_found;
  __shared__ uint32_t threshold;
  uint32_t smallest, largest;
  LoadKeys<kThreads>(score, n, cached, &smallest, &largest);
  for (int i = threadIdx.x; i < kBins; i += kThreads) histogram[i] = 0;
  if (threadIdx.x == 0) num_candidates = 0, threshold_found = 0;
  BlockExtremes<kThreads>(&smallest, &largest);
  if (smallest >= largest) return false;
  const Steps bin_of(smallest, largest);
  if (!bin_of.ok()) return false;
  for (int i = threadIdx.x; i < n; i += kThreads) atomicAdd(&histogram[bin_of(cached[i])], 1);
  __syncthreads();
  int bin, above;
  FindBin<kThreads>(histogram, k, &bin, &above);
  if (histogram[bin] > kMaxCandidates) return false;
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const uint32_t key = cached[i];
    if (bin_of(key) == bin) candidates[atomicAdd(&num_candidates, 1)] = key;
  }
  __syncthreads();
  const int count = num_candidates, wanted = k - above;
  if (static_cast<int>(threadIdx.x) < count) {
    const uint32_t own = candidates[threadIdx.x];
    int greater = 0, not_less = 0;
    for (int i = 0; i < count; ++i) greater += candidates[i] > own, not_less += candidates[i] >= own;
    if (greater < wanted && wanted == not_less) threshold = own, threshold_found = 1;  // all equals agree
  }
  __syncthreads();
  if (!threshold_found) return false;
  const int words = (n + 31) / 32;
  MarkChosen<kThreads>(cached, n, threshold, bits);
  uint32_t own = static_cast<int>(threadIdx.x) < words ? bits[threadIdx.x] : 0;
  int unused;
  int at = PrefixSum<kThreads>(__popc(own), &unused);
  for (; own != 0; own &= own - 1) out[at++] = 32 * static_cast<int>(threadIdx.x) + __ffs(static_cast<int>(own)) - 1;
  return true;
}

// SelectFast by a cluster: block `rank` has rows [rank * run, ...), run <= 32 kThreads, which fit its shared memory.
template <int kCluster, int kThreads>
__device__ __forceinline__ bool SelectFastByCluster(const float* scores, uint32_t* cached, int* histogram, int* total,
                                                    int n, int k, int rank, int32_t* out) {
  namespace cg = cooperative_groups;
  constexpr int kMaxOfBlock = 64;
  __shared__ uint2 extremes[kCluster];
  __shared__ uint32_t candidates[kCluster][kMaxOfBlock];
  __shared__ int candidate_counts[kCluster], chosen_counts[kCluster];
  __shared__ uint32_t bits[kThreads];
  __shared__ int num_own, threshold_found;
  __shared__ uint32_t threshold;
  cg::cluster_group cluster = cg::this_cluster();
  const int run = (n + kCluster * 128 - 1) / (kCluster * 128) * 128, begin = min(n, rank * run),
            count = min(run, n - begin);
  ClusterArriveRelaxed();  // the blocks run: their memory may be written
  uint32_t smallest, largest;
  LoadKeys<kThreads>(scores + begin, count, cached, &smallest, &largest);
  for (int i = threadIdx.x; i < kBins; i += kThreads) histogram[i] = 0;
  if (threadIdx.x == 0) num_own = 0, threshold_found = 0;
  BlockExtremes<kThreads>(&smallest, &largest);
  ClusterWait();
  if (threadIdx.x < kCluster) *cluster.map_shared_rank(&extremes[rank], threadIdx.x) = make_uint2(smallest, largest);
  cluster.sync();
#pragma unroll
  for (int r = 0; r < kCluster; ++r) smallest = min(smallest, extremes[r].x), largest = max(largest, extremes[r].y);
  if (smallest >= largest) return false;
  const Steps bin_of(smallest, largest);
  if (!bin_of.ok()) return false;
  for (int i = threadIdx.x; i < count; i += kThreads) atomicAdd(&histogram[bin_of(cached[i])], 1);
  cluster.sync();
  AddHistograms<kCluster, kThreads>(histogram, total, rank);
  cluster.sync();
  int bin, above;
  FindBin<kThreads>(total, k, &bin, &above);
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const uint32_t key = cached[i];
    if (bin_of(key) != bin) continue;
    const int slot = atomicAdd(&num_own, 1);
    if (slot >= kMaxOfBlock) continue;
    for (int r = 0; r < kCluster; ++r) *cluster.map_shared_rank(&candidates[rank][slot], r) = key;
  }
  __syncthreads();
  if (threadIdx.x < kCluster) *cluster.map_shared_rank(&candidate_counts[rank], threadIdx.x) = num_own;
  cluster.sync();
  bool too_many = false;
#pragma unroll
  for (int r = 0; r < kCluster; ++r) too_many = too_many || candidate_counts[r] > kMaxOfBlock;
  if (too_many) return false;
  const int own_block = static_cast<int>(threadIdx.x) / kMaxOfBlock,
            own_slot = static_cast<int>(threadIdx.x) % kMaxOfBlock;
  if (own_block < kCluster && own_slot < candidate_counts[own_block]) {
    const uint32_t own = candidates[own_block][own_slot];
    const int2 places = RankOf(own, candidates, candidate_counts);
    if (places.x < k - above && k - above == places.y) threshold = own, threshold_found = 1;
  }
  __syncthreads();
  if (!threshold_found) return false;
  MarkChosen<kThreads>(cached, count, threshold, bits);
  uint32_t own = static_cast<int>(threadIdx.x) < (count + 31) / 32 ? bits[threadIdx.x] : 0;
  int of_block;
  int at = PrefixSum<kThreads>(__popc(own), &of_block);
  if (threadIdx.x < kCluster) *cluster.map_shared_rank(&chosen_counts[rank], threadIdx.x) = of_block;
  cluster.sync();  // after the last access to another block's memory
  for (int r = 0; r < rank; ++r) at += chosen_counts[r];
  for (; own != 0; own &= own - 1)
    out[at++] = begin + 32 * static_cast<int>(threadIdx.x) + __ffs(static_cast<int>(own)) - 1;
  return true;
}

// Called by a token's cluster. grid (tokens * kCluster), shared memory for `cached_keys` keys.
template <int kCluster, int kThreads>
__device__ __forceinline__ void Select(const float* scores, int64_t stride, const int64_t* positions, int64_t ratio,
                                       int k, int cached_keys, int32_t* out) {
  extern __shared__ uint32_t cached[];
  __shared__ int histogram[kBins], total[kCluster > 1 ? kBins : 1];
  __shared__ int2 counts[kCluster];
  AllowNext();
  const int64_t t = blockIdx.x / kCluster;
  const int rank = static_cast<int>(blockIdx.x % kCluster);
  const int n = static_cast<int>((positions[t] + 1) / ratio);  // step data, not written in the step
  int32_t* row_out = out + t * k;
  // few rows: a cluster would cost more than it saves
  if (n > k && n <= min(cached_keys, (kCluster > 1 ? 16 : 32) * kThreads)) {
    if (rank != 0) return;
    // A small grid waits long before it may begin. So it selects twice, first among numbers of its own, so that the
    // code is loaded when the scores are available.
    __shared__ __align__(16) float own_scores[128];
    __shared__ int32_t own_rows[32];
    bool chosen = false;
#pragma unroll 1
    for (int pass = gridDim.x <= 16 * kCluster ? 0 : 1; pass < 2; ++pass) {
      const bool real = pass == 1;
      if (real) {
        WaitForPrevious();
      } else if (threadIdx.x < 128) {
        own_scores[threadIdx.x] = static_cast<float>(threadIdx.x);
      }
      __syncthreads();
      chosen = SelectFast<kThreads>(real ? scores + t * stride : own_scores, cached, histogram, real ? n : 128,
                                    real ? k : 8, real ? row_out : own_rows);
      __syncthreads();
    }
    if (!chosen) {
      SelectByRadix<1, kThreads>(scores + t * stride, n, k, 0, cached_keys, cached, histogram, total, counts, row_out);
    }
    return;
  }
  WaitForPrevious();
  if (n <= k) {
    for (int i = rank * kThreads + static_cast<int>(threadIdx.x); i < k; i += kCluster * kThreads)
      row_out[i] = i < n ? i : -1;
    return;
  }
  if constexpr (kCluster > 1) {
    if (n <= kCluster * min(cached_keys, 32 * kThreads) - 128 * kCluster &&
        SelectFastByCluster<kCluster, kThreads>(scores + t * stride, cached, histogram, total, n, k, rank, row_out)) {
      return;
    }
  }
  SelectByRadix<kCluster, kThreads>(scores + t * stride, n, k, rank, cached_keys, cached, histogram, total, counts,
                                    row_out);
}

#define DSV4_SELECT_ARGS \
  const float *scores, int64_t stride, const int64_t *positions, int64_t ratio, int k, int cached_keys, int32_t *out
__global__ void __cluster_dims__(8, 1, 1) __launch_bounds__(1024) SelectBy8Kernel(DSV4_SELECT_ARGS) {
  Select<8, 1024>(scores, stride, positions, ratio, k, cached_keys, out);
}
__global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(1024) SelectBy4Kernel(DSV4_SELECT_ARGS) {
  Select<4, 1024>(scores, stride, positions, ratio, k, cached_keys, out);
}
__global__ void __launch_bounds__(1024) SelectKernel(DSV4_SELECT_ARGS) {
  Select<1, 1024>(scores, stride, positions, ratio, k, cached_keys, out);
}
__global__ void __launch_bounds__(512) SelectManyKernel(DSV4_SELECT_ARGS) {
  Select<1, 512>(scores, stride, positions, ratio, k, cached_keys, out);
}
#undef DSV4_SELECT_ARGS

}  // namespace dsv4::topk
