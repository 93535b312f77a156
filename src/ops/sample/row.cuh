// A row of logits in a cluster of blocks, up to the masses of its tokens: the first half of SampleKernel
// (sample_cuda.cu).
#pragma once

#include "base/random.h"
#include "base/sample_math.h"
#include "device/launch.cuh"
#include "ops/sample/bins.cuh"
#include "ops/sample/sample.h"

namespace dsv4::sample {

using gpu::ClusterBarrier;
using gpu::First;
using gpu::Message;
using gpu::Second;
using gpu::Send;
using gpu::WarpAdd;
using gpu::WarpPrefix;

inline constexpr int kWarps = kThreads / 32, kOwn = 16;
inline constexpr int kPitch = kOwn + 1;  // a thread's tokens in shared memory, without bank conflicts
inline constexpr int kUnroll = 4;
static_assert(kWarps == kCluster && kCluster * kThreads * kOwn >= kMaxSampleVocab);
inline constexpr int kMaxCandidates = 128;             // tokens of a block that are sorted at once
inline constexpr int kDigitBits = 10, kRankBits = 50;  // of a rank: the logit's key and 18 bits of the id
inline constexpr float kMinusInfinity = -INFINITY;

struct Shared {
  uint64_t mass[kThreads][kPitch];
  float logit[kThreads][kPitch];
  uint4 candidates[kCluster][kMaxCandidates];  // from each block: ranks and masses
  Histogram distances, digits;
  uint4 bins[kCluster][32];  // from each block: mass and count of a group's bins
  uint4 largest[kCluster], counts[kCluster], sums[kCluster], raw_sums[kCluster];  // from each block
  uint4 own[kMaxCandidates];
  uint32_t own_token[kMaxCandidates];  // the token's place in the block
  uint32_t keep[kThreads * kOwn / 32];
  uint4 warp_largest[kWarps];
  uint64_t warp_sum[kWarps], warp_raw_sum[kWarps];
  uint64_t before, mass_before;
  double wanted;
  int found, num_own;
  ClusterBarrier at_largest, at_distances, at_digits, at_bins, at_candidates, at_sums, at_raw_sums;
};
static_assert(sizeof(Shared) <= kSharedMemoryOfABlock);

__device__ __forceinline__ void InitShared(Shared& s) {
  if (threadIdx.x == 0) {
    s.at_largest.Init(1), s.at_distances.Init(1), s.at_digits.Init(1), s.at_bins.Init(1);
    s.at_candidates.Init(kCluster), s.at_sums.Init(1), s.at_raw_sums.Init(1);
    BarrierInitFence();
    s.at_largest.Expect(sizeof s.largest), s.at_distances.Expect(sizeof s.distances.groups);
    s.at_digits.Expect(sizeof s.digits.groups), s.at_bins.Expect(sizeof s.bins);
    s.at_sums.Expect(sizeof s.sums), s.at_raw_sums.Expect(sizeof s.raw_sums);
    s.num_own = 0;
  }
  Clear(s.distances);
}

// A thread's place and its tokens; the fields have their values after the step below that sets them.
struct Row {
  Shared& s;
  const int rank, thread, warp, lane;
  const float* const logits;  // of the row, unchanged
  const int first, own_tokens;
  float (&logit)[kPitch];    // of the thread's tokens, adjusted
  uint64_t (&mass)[kPitch];  // of the thread's tokens
  const SampleRow& p;
  float largest;      // of the thread's logits, at the end of the row's logits
  float raw_largest;  // of the row's unchanged logits
  uint64_t own = 0;   // mass of the thread's kept tokens
  uint32_t near = 0;  // the thread's tokens that have a bin
  double inverse;     // of the temperature
  float bin_scale;

  __device__ __forceinline__ float DistanceOf(int j) const {  // 0 for equal infinities
    return fmaxf((largest - logit[j]) * bin_scale, 0.0f);
  }
};

// Loads the unchanged logits. Returns whether one is a NaN.
__device__ __forceinline__ bool LoadLogits(Row& row) {
  row.largest = kMinusInfinity;
  bool nan = false;
  if (row.own_tokens == kOwn && reinterpret_cast<uintptr_t>(row.logits) % 16 == 0) {
    float x[kOwn];
#pragma unroll
    for (int j = 0; j < kOwn; j += 4)
      *reinterpret_cast<float4*>(x + j) = *reinterpret_cast<const float4*>(row.logits + row.first + j);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      nan = nan || x[j] != x[j];
      row.largest = fmaxf(row.largest, x[j]);
      row.logit[j] = x[j];
    }
  } else {
#pragma unroll 4
    for (int j = 0; j < kOwn; ++j) {  // after the last token: -inf, which has no mass
      const float x = j < row.own_tokens ? row.logits[row.first + j] : kMinusInfinity;
      nan = nan || x != x;
      row.largest = fmaxf(row.largest, x);
      row.logit[j] = x;
    }
  }
  return nan;
}

// Applies bias, penalties and `allowed`.
__device__ __forceinline__ void Adjust(Row& row) {
  const SampleRow& p = row.p;
  const bool penalties = p.repeat_penalty != 1.0f || p.presence_penalty != 0 || p.frequency_penalty != 0;
  if (!(p.num_bias > 0 || penalties || p.allowed != nullptr)) return;
  __syncthreads();
  for (int i = row.thread; i < p.num_bias; i += kThreads) {
    const int at = p.bias_ids[i] - row.rank * kThreads * kOwn;
    if (at < 0 || at >= kThreads * kOwn) continue;
    float& x = row.s.logit[at / kOwn][at % kOwn];
    x = AddBias(x, p.bias[i]);
  }
  __syncthreads();
  row.largest = kMinusInfinity;
#pragma unroll 2
  for (int j = 0; j < row.own_tokens; ++j) {
    const int id = row.first + j;
    float x = row.logit[j];
    if (penalties) {
      const int prompt = p.prompt_count ? p.prompt_count[id] : 0;
      int outputs = p.output_count ? p.output_count[id] : 0;
      for (int i = 0; i < p.num_also; ++i) outputs += p.also[i] == id ? 1 : 0;
      if (outputs + prompt > 0) x = Penalise(x, p.repeat_penalty, p.presence_penalty, p.frequency_penalty, outputs);
    }
    if (p.allowed != nullptr && (p.allowed[id / 32] >> (id % 32) & 1) == 0) x = kMinusInfinity;
    row.largest = fmaxf(row.largest, x);
    row.logit[j] = x;
  }
}

// The largest logit of some tokens, adjusted and unchanged, as keys.
struct Largest {
  // not_id: for the first of the largest, at temperature 0. A raw_key above all others: a NaN.
  uint32_t key, not_id, raw_key;

  __device__ __forceinline__ void OfWarp() {
    const uint32_t most = __reduce_max_sync(0xFFFFFFFFu, key);
    not_id = __reduce_max_sync(0xFFFFFFFFu, key == most ? not_id : 0u);
    raw_key = __reduce_max_sync(0xFFFFFFFFu, raw_key);
    key = most;
  }
  __device__ __forceinline__ void Take(const uint4& of) { key = of.x, not_id = of.y, raw_key = of.z; }
  __device__ __forceinline__ uint4 AsMessage() const { return make_uint4(key, not_id, raw_key, 0); }
};

// Sends the block's largest to all blocks, which wait for it in LargestOfRow.
__device__ __forceinline__ Largest SendLargest(const Row& row, uint32_t raw_key) {
  uint32_t not_id = 0;
  if (row.p.temperature == 0) {
    for (int j = row.own_tokens - 1; j >= 0; --j) {
      if (row.logit[j] == row.largest) not_id = ~static_cast<uint32_t>(row.first + j);
    }
  }
  Largest l = {KeyOf(row.largest), not_id, raw_key};
  l.OfWarp();
  if (row.lane == 0) row.s.warp_largest[row.warp] = l.AsMessage();
  __syncthreads();
  if (row.warp == 0) {
    l.Take(row.s.warp_largest[row.lane % kWarps]);
    l.OfWarp();
    if (row.lane < kCluster) Send(&row.s.largest[row.rank], l.AsMessage(), row.s.at_largest, row.lane);
  }
  return l;
}
__device__ __forceinline__ void LargestOfRow(Row& row, Largest& l) {
  row.s.at_largest.Wait(0);
  l.Take(row.s.largest[row.lane % kCluster]);
  l.OfWarp();
  row.largest = LogitOf(l.key);
  row.raw_largest = LogitOf(l.raw_key);
}

__device__ __forceinline__ int32_t ErrorOf(const Largest& l) {
  return l.raw_key == 0xFFFFFFFFu             ? kSampleNan
         : l.raw_key == KeyOf(kMinusInfinity) ? kSampleNothing
         : l.key == KeyOf(kMinusInfinity)     ? kSampleBanned
                                              : 0;
}

// The mass of the row's unchanged logits, at temperature 1.
__device__ __forceinline__ uint64_t RawSum(const Row& row) {
  uint64_t sum = 0;
#pragma unroll 2
  for (int j = 0; j < row.own_tokens; ++j) sum += Mass(Exponent(row.logits[row.first + j], row.raw_largest, 1.0));
  sum = WarpAdd(sum);
  if (row.lane == 0) row.s.warp_raw_sum[row.warp] = sum;
  __syncthreads();
  if (row.warp == 0) {
    sum = WarpAdd(row.lane < kWarps ? row.s.warp_raw_sum[row.lane] : 0);
    if (row.lane < kCluster) Send(&row.s.raw_sums[row.rank], Message(sum, 0), row.s.at_raw_sums, row.lane);
  }
  row.s.at_raw_sums.Wait(0);
  return WarpAdd(row.lane < kCluster ? First(row.s.raw_sums[row.lane]) : 0);
}

// Computes masses by token and, with `cuts`, by bin. The bin's number never decreases as the logit decreases.
__device__ __forceinline__ void MakeMasses(Row& row, bool cuts, bool counts) {
  if (row.p.temperature != 0 && !cuts) {
#pragma unroll kUnroll
    for (int j = 0; j < kOwn; ++j) row.own += row.mass[j] = Mass(Exponent(row.logit[j], row.largest, row.inverse));
  } else if (row.p.temperature != 0) {
#pragma unroll 1
    for (int first_of = 0; first_of < kOwn; first_of += kUnroll) {
      uint64_t m[kUnroll];
      int bin[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int j = first_of + u;
        m[u] = Mass(Exponent(row.logit[j], row.largest, row.inverse));
        const float distance = row.DistanceOf(j);
        bin[u] = distance < static_cast<float>(kFar) ? static_cast<int>(distance) : -1;
        row.near |= (bin[u] >= 0 ? 1u : 0u) << j;
        row.mass[j] = m[u];
        row.own += m[u];
      }
      AddToBins(row.s.distances, bin, m, counts);
    }
  }
}

}  // namespace dsv4::sample
