// The result of select.h for one token, optimised for the latency of one row. A block or a cluster of blocks works as
// in select.cuh, with few barriers of a block. Messages between blocks (device/cluster.cuh) replace barriers of the
// cluster.
#pragma once

#include "device/cluster.cuh"
#include "ops/index_topk/select.cuh"

namespace dsv4::topk {

constexpr int kOneCluster = 8, kOneThreads = 512, kOneWarps = kOneThreads / 32;
constexpr int kOneKeys = 64 * kOneThreads;  // keys of a block, at most: 64 words of 32 keys per warp
static_assert(kOneWarps >= kOneCluster && kBins == 2048);

// Counts, one per lane, from the top: returns the lane whose count contains the `wanted`-th. Adds the counts before it
// to `above`.
__device__ __forceinline__ int FromTop(int count, int wanted, int* above) {
  const int with = gpu::WarpPrefix(count);
  const int at = min(__popc(__ballot_sync(0xFFFFFFFFu, with < wanted)), 31);
  *above += __shfl_sync(0xFFFFFFFFu, with - count, at);
  return at;
}

// Finds the key that exactly `wanted` of a warp's `count` candidates reach.
__device__ __forceinline__ bool Threshold(uint32_t own, int count, int wanted, uint32_t* threshold) {
  int not_less = 0;
#pragma unroll 4
  for (int i = 0; i < count; ++i) not_less += __shfl_sync(0xFFFFFFFFu, own, i) >= own;
  const uint32_t here = __ballot_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x % 32) < count && not_less == wanted);
  *threshold = __shfl_sync(0xFFFFFFFFu, own, max(__ffs(static_cast<int>(here)) - 1, 0));
  return here != 0;
}

// A warp's run of a block's keys, at most 64 words of 32; four words in flight at a time.
struct Run {
  template <typename Use>
  __device__ __forceinline__ void Each(Use use) const {  // use(word, key, whether the key exists)
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int first = begin; first < end; first += 4 * 32) {
      uint32_t key[4];
#pragma unroll
      for (int u = 0; u < 4; ++u) key[u] = first + 32 * u + lane < end ? cached[first + 32 * u + lane] : 0;
#pragma unroll
      for (int u = 0; u < 4; ++u) use((first - begin) / 32 + u, key[u], first + 32 * u + lane < end);
    }
  }
  __device__ __forceinline__ void Count(const Steps& bin_of, int* histogram) const {
    Each([&](int, uint32_t key, bool there) {
      const int bin = bin_of(key);
      if (there) atomicAdd(&histogram[bin], 1);
    });
  }
  // Returns the number of keys above `bin`, and lists the keys in it, up to the size of the list.
  __device__ __forceinline__ int List(const Steps& bin_of, int bin, uint32_t* list, int* listed) const {
    int in_front = 0;
    Each([&](int, uint32_t key, bool there) {
      const int own = there ? bin_of(key) : -1;
      in_front += own > bin;
      if (own != bin) return;
      const int slot = atomicAdd(listed, 1);
      if (slot < 32) list[slot] = key;
    });
    return __reduce_add_sync(0xFFFFFFFFu, in_front);
  }
  // The keys that are at least `least`, as bits: lane i has words i and 32 + i.
  __device__ __forceinline__ uint2 Chosen(uint32_t least) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    uint2 bits{0, 0};
    Each([&](int w, uint32_t key, bool there) {
      const uint32_t word = __ballot_sync(0xFFFFFFFFu, there && key >= least);
      if (w == lane) bits.x = word;
      if (w == 32 + lane) bits.y = word;
    });
    return bits;
  }
  // Writes their rows from out[at]: word by word, or, if few are chosen, each lane the rows of its words.
  template <bool kFew>
  __device__ __forceinline__ void Write(uint2 bits, int first_row, int32_t* out, int at) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int first = begin; first < end; first += 32 * 32) {
      const int number = __popc(bits.x), to = at + gpu::WarpPrefix(number);
      if constexpr (kFew) {
        int32_t* next = out + to - number;
        for (uint32_t own = bits.x; own != 0; own &= own - 1)
          *next++ = first_row + first + 32 * lane + __ffs(static_cast<int>(own)) - 1;
      } else {
#pragma unroll 4
        for (int w = 0; w < min(32, (end - first + 31) / 32); ++w) {
          const uint32_t word = __shfl_sync(0xFFFFFFFFu, bits.x, w);
          const int from = __shfl_sync(0xFFFFFFFFu, to - number, w);
          if (word >> lane & 1) out[from + __popc(word & ((1u << lane) - 1))] = first_row + first + 32 * w + lane;
        }
      }
      at = __shfl_sync(0xFFFFFFFFu, to, 31);
      bits.x = bits.y;
    }
  }
  const uint32_t* cached;
  int begin, end;
};

__device__ __forceinline__ Run RunOf(const uint32_t* cached, int count) {
  const int run = (count + kOneThreads - 1) / kOneThreads * 32, warp = static_cast<int>(threadIdx.x) / 32;
  return {cached, min(count, warp * run), min(count, (warp + 1) * run)};
}

// Sums a histogram's 32 groups of 64 bins, by the block.
template <typename Int>
__device__ __forceinline__ void SumGroups(const int* histogram, Int (&group_sum)[32]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int g = warp; g < 32; g += kOneWarps) {
    const int2 pair = reinterpret_cast<const int2*>(histogram)[g * 32 + lane];
    const int sum = __reduce_add_sync(0xFFFFFFFFu, pair.x + pair.y);
    if (lane == 0) group_sum[g] = static_cast<Int>(sum);
  }
}

// Finds the bin of the `wanted`-th key from the top of 2,048 bins. Every warp finds it by itself, beginning with the
// group of 64 bins. One barrier of the block before the call, one inside.
__device__ __forceinline__ void FindBinByWarp(const int* histogram, int wanted, int* bin, int* above_bin) {
  __shared__ int group_sum[32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  SumGroups(histogram, group_sum);
  __syncthreads();
  int above = 0;
  const int group = FromTop(group_sum[31 - lane], wanted, &above);
  const int2 pair = reinterpret_cast<const int2*>(histogram)[(31 - group) * 32 + 31 - lane];
  const int at = FromTop(pair.x + pair.y, wanted - above, &above);
  const int high = __shfl_sync(0xFFFFFFFFu, pair.y, at);
  *bin = (31 - group) * 64 + 2 * (31 - at) + 1;
  if (above + high < wanted) above += high, --*bin;
  *above_bin = above;
}

// One block, n <= kOneKeys rows in shared memory. A histogram over equal steps between the smallest and the largest
// finite score leaves a few candidates, which every warp ranks by itself. Returns false (for all threads), with nothing
// written, if there are too many candidates, or if only the row decides between equal scores.
__device__ __forceinline__ bool SelectAlone(const float* score, uint32_t* cached, int* histogram, int n, int k,
                                            int32_t* out) {
  __shared__ uint32_t candidates[32];
  __shared__ int num_candidates, warp_chosen[32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t smallest, largest;
  LoadKeys<kOneThreads>(score, n, cached, &smallest, &largest);
  for (int i = threadIdx.x; i < kBins; i += kOneThreads) histogram[i] = 0;
  if (threadIdx.x == 0) num_candidates = 0;
  BlockExtremes<kOneThreads>(&smallest, &largest);
  if (smallest >= largest) return false;
  const Steps bin_of(smallest, largest);
  if (!bin_of.ok()) return false;
  const Run run = RunOf(cached, n);  // a warp's results are in order of rows
  run.Count(bin_of, histogram);
  __syncthreads();
  int bin, above;
  FindBinByWarp(histogram, k, &bin, &above);
  run.List(bin_of, bin, candidates, &num_candidates);
  __syncthreads();
  const int count = num_candidates, wanted = k - above;
  if (count > 32) return false;
  uint32_t threshold;
  if (!Threshold(lane < count ? candidates[lane] : 0, count, wanted, &threshold)) return false;
  const uint2 bits = run.Chosen(threshold);
  const int chosen = __reduce_add_sync(0xFFFFFFFFu, __popc(bits.x) + __popc(bits.y));
  if (lane == 0) warp_chosen[warp] = chosen;
  __syncthreads();
  run.Write<false>(bits, 0, out, __reduce_add_sync(0xFFFFFFFFu, lane < warp ? warp_chosen[lane] : 0));
  return true;
}

// SelectAlone by a cluster: block `rank` has rows [rank * run, ...), run <= kOneKeys. Blocks send each other their
// results (device/cluster.cuh). When a block returns, it has sent and received everything.
struct ClusterRoom {
  static constexpr int kCluster = kOneCluster;
  uint4 extremes[kCluster];
  uint4 groups[kCluster][8];  // a block's 32 groups of 64 bins
  uint4 bins[kCluster][16];   // bins of one group
  uint4 counts[kCluster];     // candidates, and chosen rows before them
  uint4 candidates[kCluster][8];
  uint4 own[8];
  gpu::ClusterBarrier at_extremes, at_groups, at_bins, at_candidates;
  int found_bin, found_above, num_own;
};

__device__ __forceinline__ void OpenCluster(ClusterRoom& room) {  // call before anything that may wait
  if (threadIdx.x == 0) {
    room.at_extremes.Init(1), room.at_groups.Init(1), room.at_bins.Init(1), room.at_candidates.Init(1);
    BarrierInitFence();
    room.at_extremes.Expect(sizeof room.extremes), room.at_groups.Expect(sizeof room.groups);
    room.at_bins.Expect(sizeof room.bins);
    room.at_candidates.Expect(sizeof room.counts + sizeof room.candidates);
  }
  __syncwarp();
  ClusterArrive();
  ClusterWait();
}

// Finds the bin of all blocks' histograms that holds the k-th key from the top, by a block's first warp: room.found_bin
// and found_above. All blocks have sent their groups.
__device__ __forceinline__ void FindBinTogether(const int* histogram, ClusterRoom& room, int k, int rank, int lane,
                                                uint32_t parity) {
  constexpr int kCluster = kOneCluster;
  int above = 0;
  room.at_groups.Wait(parity);
  if (lane == 0) room.at_groups.Expect(sizeof room.groups);
  int sum = 0;
#pragma unroll
  for (int r = 0; r < kCluster; ++r) sum += reinterpret_cast<const int*>(room.groups[r])[31 - lane];
  const int group = 31 - FromTop(sum, k, &above);
  for (int i = lane; i < 16 * kCluster; i += 32) {
    Send(&room.bins[rank][i % 16], reinterpret_cast<const uint4*>(histogram)[group * 16 + i % 16], room.at_bins,
         i / 16);
  }
  room.at_bins.Wait(parity);
  if (lane == 0) room.at_bins.Expect(sizeof room.bins);
  int2 pair{0, 0};
#pragma unroll
  for (int r = 0; r < kCluster; ++r) {
    const int2 part = reinterpret_cast<const int2*>(room.bins[r])[31 - lane];
    pair.x += part.x, pair.y += part.y;
  }
  const int at = FromTop(pair.x + pair.y, k - above, &above), high = __shfl_sync(0xFFFFFFFFu, pair.y, at);
  const bool is_low = above + high < k;
  if (lane == 0) {
    room.found_bin = group * 64 + 2 * (31 - at) + (is_low ? 0 : 1);
    room.found_above = above + (is_low ? high : 0);
  }
}

// The cluster's extremes from the blocks'.
__device__ __forceinline__ void ClusterExtremes(ClusterRoom& room, int rank, int lane, uint32_t parity,
                                                uint32_t* smallest, uint32_t* largest) {
  constexpr int kCluster = kOneCluster;
  if (threadIdx.x < kCluster)
    Send(&room.extremes[rank], make_uint4(*smallest, *largest, 0, 0), room.at_extremes, static_cast<int>(threadIdx.x));
  room.at_extremes.Wait(parity);
  if (threadIdx.x == 0) room.at_extremes.Expect(sizeof room.extremes);
  *smallest = __reduce_min_sync(0xFFFFFFFFu, room.extremes[lane % kCluster].x);
  *largest = __reduce_max_sync(0xFFFFFFFFu, room.extremes[lane % kCluster].y);
}

// Sends a block's candidates, and the number of rows before them, to every block: one warp per block.
__device__ __forceinline__ void SendCandidates(ClusterRoom& room, const int (&warp_in_front)[32], int rank, int warp,
                                               int lane) {
  const int all = __reduce_add_sync(0xFFFFFFFFu, lane < kOneWarps ? warp_in_front[lane] : 0);
  if (lane == 0) {
    Send(&room.counts[rank], make_uint4(static_cast<uint32_t>(room.num_own), static_cast<uint32_t>(all), 0, 0),
         room.at_candidates, warp);
  }
  if (lane < 8) Send(&room.candidates[rank][lane], room.own[lane], room.at_candidates, warp);
}

// `own`: `scores` has only the block's rows. `parity`: of the barriers, which is the number of earlier calls.
__device__ __forceinline__ bool SelectTogether(const float* scores, bool own, uint32_t* cached, int* histogram,
                                               ClusterRoom& room, int n, int k, int rank, uint32_t parity,
                                               int32_t* out) {
  constexpr int kCluster = kOneCluster;
  __shared__ __align__(16) uint32_t group_sum[32];
  __shared__ int warp_chosen[32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int share = (n + kCluster * 128 - 1) / (kCluster * 128) * 128, block_begin = min(n, rank * share),
            count = min(share, n - block_begin);
  uint32_t smallest, largest;
  LoadKeys<kOneThreads>(own ? scores : scores + block_begin, count, cached, &smallest, &largest);
  for (int i = threadIdx.x; i < kBins; i += kOneThreads) histogram[i] = 0;
  if (threadIdx.x == 0) room.num_own = 0;
  BlockExtremes<kOneThreads>(&smallest, &largest);
  ClusterExtremes(room, rank, lane, parity, &smallest, &largest);
  if (smallest >= largest) return false;
  const Steps bin_of(smallest, largest);
  if (!bin_of.ok()) return false;
  const Run run = RunOf(cached, count);
  run.Count(bin_of, histogram);
  __syncthreads();
  SumGroups(histogram, group_sum);
  __syncthreads();
  for (int i = threadIdx.x; i < 8 * kCluster; i += kOneThreads)
    Send(&room.groups[rank][i % 8], reinterpret_cast<const uint4*>(group_sum)[i % 8], room.at_groups, i / 8);
  if (warp == 0) FindBinTogether(histogram, room, k, rank, lane, parity);
  __syncthreads();
  const int bin = room.found_bin, wanted = k - room.found_above;
  const int in_front = run.List(bin_of, bin, reinterpret_cast<uint32_t*>(room.own), &room.num_own);
  if (lane == 0) warp_chosen[warp] = in_front;
  __syncthreads();
  if (warp < kCluster) SendCandidates(room, warp_chosen, rank, warp, lane);  // to block `warp`
  room.at_candidates.Wait(parity);
  if (threadIdx.x == 0) room.at_candidates.Expect(sizeof room.counts + sizeof room.candidates);
  // One candidate per lane: up to 32 of all blocks together.
  const int of_block = lane < kCluster ? static_cast<int>(room.counts[lane].x) : 0;
  const int listed_to = gpu::WarpPrefix(of_block), listed = __shfl_sync(0xFFFFFFFFu, listed_to, 31);
  if (listed > 32) return false;
  int from = 0, from_begin = 0;
#pragma unroll
  for (int r = 0; r < kCluster; ++r) {
    const int to = __shfl_sync(0xFFFFFFFFu, listed_to, r);
    if (lane >= to) from = r + 1, from_begin = to;
  }
  const uint32_t candidate = lane < listed ? reinterpret_cast<const uint32_t*>(
                                                 room.candidates[min(from, kCluster - 1)])[(lane - from_begin) % 32]
                                           : 0;
  uint32_t threshold;
  if (!Threshold(candidate, listed, wanted, &threshold)) return false;
  int at = __reduce_add_sync(0xFFFFFFFFu, lane < rank ? static_cast<int>(room.counts[lane].y) : 0) +
           __popc(__ballot_sync(0xFFFFFFFFu, lane < listed && from < rank && candidate >= threshold));
  const uint2 bits = run.Chosen(threshold);
  const int chosen = __reduce_add_sync(0xFFFFFFFFu, __popc(bits.x) + __popc(bits.y));
  __syncthreads();  // after `warp_chosen` has been read
  if (lane == 0) warp_chosen[warp] = chosen;
  __syncthreads();
  at += __reduce_add_sync(0xFFFFFFFFu, lane < warp ? warp_chosen[lane] : 0);
  run.Write<true>(bits, block_begin, out, at);
  return true;
}

// For rows that SelectAlone and SelectTogether do not decide. That is rare, so its registers must not add to theirs.
template <int kCluster>
__device__ __noinline__ void SelectByRadixInstead(const float* scores, int n, int k, int rank, uint32_t* cached,
                                                  int* histogram, int32_t* out) {
  __shared__ int total[kCluster > 1 ? kBins : 1];
  __shared__ int2 counts[kCluster];
  SelectByRadix<kCluster, kOneThreads>(scores, n, k, rank, kOneKeys, cached, histogram, total, counts, out);
}

// grid (8), one cluster. With up to `alone` rows, which is at most kOneKeys, one block selects.
__global__ void __cluster_dims__(kOneCluster, 1, 1) __launch_bounds__(kOneThreads)
    SelectOneKernel(const float* scores, const int64_t* positions, int64_t ratio, int k, int alone, int32_t* out) {
  extern __shared__ uint32_t cached[];
  __shared__ __align__(16) int histogram[kBins];
  __shared__ ClusterRoom room;
  __shared__ __align__(16) float own_scores[128];
  __shared__ int32_t own_rows[32];
  AllowNext();
  const int rank = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int n = static_cast<int>((positions[0] + 1) / ratio);  // step data, not written in the step
  if (n <= k) {
    WaitForPrevious();
    for (int i = rank * kOneThreads + thread; i < k; i += kOneCluster * kOneThreads) out[i] = i < n ? i : -1;
    return;
  }
  const bool is_alone = n <= alone;
  if (is_alone && rank != 0) return;
  if (!is_alone) OpenCluster(room);
  // The kernel waits long before it may begin. So it selects twice, first 8 of 128 or 1,024 numbers of its own, so that
  // the code is loaded when the scores are available.
  if (thread < 128) own_scores[thread] = static_cast<float>(rank * 128 + thread);
  bool chosen = false;
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    const bool real = pass == 1;
    __syncthreads();
    if (real) WaitForPrevious();
    const float* from = real ? scores : own_scores;
    int32_t* to = real ? out : own_rows;
    if (is_alone) {
      chosen = SelectAlone(from, cached, histogram, real ? n : 128, real ? k : 8, to);
    } else if (real && n > kOneCluster * kOneKeys) {
      chosen = false;
    } else {
      chosen = SelectTogether(from, !real, cached, histogram, room, real ? n : 128 * kOneCluster, real ? k : 8, rank,
                              real ? 1 : 0, to);
    }
  }
  if (chosen) return;
  __syncthreads();
  if (is_alone) {
    SelectByRadixInstead<1>(scores, n, k, 0, cached, histogram, out);
  } else {
    SelectByRadixInstead<kOneCluster>(scores, n, k, rank, cached, histogram, out);
  }
}

}  // namespace dsv4::topk
