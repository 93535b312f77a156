// Selects the tokens of a row in the order of likelihood, up to a mark: the second half of SampleKernel
// (sample_cuda.cu). Tokens are binned by their distance from the largest logit, then by digits of their rank, until the
// bin with the mark is short enough to be sorted.
#pragma once

#include "ops/sample/row.cuh"

namespace dsv4::sample {

// The next phases of a cluster's barriers.
struct Parities {
  uint32_t digits = 0, bins = 0, candidates = 0, sums = 0;
};

// The state of the search for a mark.
struct Search {
  Mark mark;
  uint64_t amount;                       // tokens, or mass
  uint32_t in_front = 0, in_bin;         // bits of the thread's tokens: certainly before the mark; in its bin
  uint64_t before = 0, mass_before = 0;  // of the row's tokens before that bin
  double wanted;
};

// The digit of token j's rank for this level.
__device__ __forceinline__ int DigitOf(const Row& row, int j, int level) {
  const uint64_t bits = static_cast<uint64_t>(KeyOf(row.logit[j])) << 18 |
                        (~static_cast<uint32_t>(row.first + j) & 0x3FFFFu);
  return kBins - 1 - static_cast<int>(bits >> (kRankBits - kDigitBits * level) & (kBins - 1));
}

// Bins the tokens of the current bin by their digits, and sends the sums to every block.
__device__ __forceinline__ void BinByDigit(const Row& row, const Search& q, Histogram& h, int level, bool counts) {
  __syncthreads();
  Clear(h);
  if (row.thread == 0) row.s.num_own = 0;
  __syncthreads();
  for (uint32_t bits = q.in_bin; bits != 0; bits &= bits - 1) {
    const int j = __ffs(static_cast<int>(bits)) - 1;
    AddToBins<1>(h, {DigitOf(row, j, level)}, {row.mass[j]}, counts);
  }
  __syncthreads();
  SendGroups(h, row.s.at_digits, row.rank);
}

// Finds the group, then the bin that contains the mark, by a warp. The result is in shared memory.
__device__ __forceinline__ void FindBin(const Row& row, const Search& q, Histogram& h, int level,
                                        const Parities& parity) {
  Shared& s = row.s;
  if (level == 0) {
    s.at_distances.Wait(0);
  } else {
    s.at_digits.Wait(parity.digits);
    if (row.lane == 0) s.at_digits.Expect(sizeof h.groups);
  }
  Place place{-1, q.before, q.mass_before};
  double wanted = q.wanted;
#pragma unroll 1
  for (int step = 0; step < 2; ++step) {
    const int group = place.at;
    place = PlaceOf(step == 0 ? h.groups : s.bins, q.mark, place.before, place.mass_before, q.amount, row.p.top_p,
                    &wanted);
    if (step == 1) place.at += group * 32;
    if (place.at < 0 || step == 1) break;
    const int bin = place.at * 32 + row.lane;
    const uint4 message = Message(MassOf(h, bin), h.count[bin]);
#pragma unroll 4
    for (int to = 0; to < kCluster; ++to) Send(&s.bins[row.rank][row.lane], message, s.at_bins, to);
    s.at_bins.Wait(parity.bins);
    if (row.lane == 0) s.at_bins.Expect(sizeof s.bins);
  }
  if (row.lane == 0) {
    s.found = place.at, s.before = place.before, s.mass_before = place.mass_before;
    s.wanted = wanted;
  }
}

// Splits the thread's tokens of the current bin: before bin `found` of this level, or in it.
__device__ __forceinline__ void SplitAt(const Row& row, Search& q, int found, int level) {
  const float found_distance = static_cast<float>(found);
  uint32_t tested = q.in_bin;
  q.in_bin = 0;
  if (level == 0) {
#pragma unroll 4
    for (int j = 0; j < kOwn; ++j) {
      const float distance = row.DistanceOf(j);
      q.in_front |= (distance < found_distance ? 1u : 0u) << j;
      q.in_bin |= (distance < found_distance + 1 ? 1u : 0u) << j;
    }
    q.in_front &= tested;
    q.in_bin &= tested & ~q.in_front;
  } else {
    for (; tested != 0; tested &= tested - 1) {
      const int j = __ffs(static_cast<int>(tested)) - 1, digit = DigitOf(row, j, level);
      if (digit < found) q.in_front |= 1u << j;
      if (digit == found) q.in_bin |= 1u << j;
    }
  }
}

// Sends the bin's tokens of every block to every block. Returns the number of this block's tokens and the largest
// number of a block.
struct Candidates {
  int own, most;
};
__device__ __forceinline__ Candidates ShareCandidates(const Row& row, const Search& q, Parities& parity) {
  Shared& s = row.s;
  for (uint32_t bits = q.in_bin; bits != 0; bits &= bits - 1) {
    const int j = __ffs(static_cast<int>(bits)) - 1, slot = atomicAdd(&s.num_own, 1);
    if (slot >= kMaxCandidates) break;
    s.own[slot] = Message(RankOf(row.logit[j], row.first + j), row.mass[j]);
    s.own_token[slot] = static_cast<uint32_t>(row.thread * kOwn + j);
  }
  __syncthreads();
  const int num_own = s.num_own, listed = min(num_own, kMaxCandidates);  // a warp sends them to a block
  if (row.lane == 0) {
    s.at_candidates.ExpectAt(row.warp, static_cast<uint32_t>(sizeof(uint4)) * static_cast<uint32_t>(1 + listed));
    Send(&s.counts[row.rank], make_uint4(static_cast<uint32_t>(num_own), 0, 0, 0), s.at_candidates, row.warp);
  }
  for (int i = row.lane; i < listed; i += 32) Send(&s.candidates[row.rank][i], s.own[i], s.at_candidates, row.warp);
  s.at_candidates.Wait(parity.candidates);
  parity.candidates ^= 1;
  const int of_lane = static_cast<int>(s.counts[row.lane % kCluster].x);
  return {num_own, __reduce_max_sync(0xFFFFFFFFu, of_lane)};
}

// Marks the block's kept candidates in s.keep.
__device__ __forceinline__ void TakeCandidates(const Row& row, const Search& q, const Candidates& c) {
  Shared& s = row.s;
  for (int i = row.warp; i < c.own; i += kWarps) {
    const uint64_t own_rank = First(s.own[i]);
    uint32_t number = 0;
    uint64_t in_front_mass = 0;
#pragma unroll 1
    for (int k = row.lane; k - row.lane < c.most; k += 32) {
#pragma unroll 8
      for (int from = 0; from < kCluster; ++from) {
        const uint4 other = s.candidates[from][k];
        const bool in_front_of = k < static_cast<int>(s.counts[from].x) && First(other) > own_rank;
        number += in_front_of ? 1 : 0;
        in_front_mass += in_front_of ? Second(other) : 0;
      }
    }
    const uint64_t without = q.before + WarpAdd(number), mass_without = q.mass_before + WarpAdd(in_front_mass);
    if (row.lane != 0 || Reached(q.mark, without, mass_without, q.amount, q.wanted)) continue;
    atomicOr(&s.keep[s.own_token[i] / 32], 1u << (s.own_token[i] % 32));
  }
}

// Returns false if the row's tokens with a bin do not reach the mark: all are before it.
__device__ __forceinline__ bool FindMark(const Row& row, Search& q, Parities& parity, bool counts) {
  Shared& s = row.s;
#pragma unroll 1
  for (int level = 0;; ++level) {  // first by distance, then by the digits of the rank
    Histogram& h = level == 0 ? s.distances : s.digits;
    if (level > 0) BinByDigit(row, q, h, level, counts);
    if (row.warp == 0) FindBin(row, q, h, level, parity);
    if (row.thread < kThreads * kOwn / 32) s.keep[row.thread] = 0;
    __syncthreads();
    const int found = s.found;
    q.before = s.before, q.mass_before = s.mass_before, q.wanted = s.wanted;
    if (level > 0) parity.digits ^= 1;
    if (found < 0) return false;  // too few tokens have a bin
    parity.bins ^= 1;
    SplitAt(row, q, found, level);
    const Candidates candidates = ShareCandidates(row, q, parity);
    if (candidates.most > kMaxCandidates) continue;  // many logits are nearly equal
    TakeCandidates(row, q, candidates);
    return true;
  }
}

// Removes tokens that min_p excludes.
__device__ __forceinline__ void ApplyMinP(const Row& row, uint32_t& kept) {
  for (int j = 0; j < kOwn; ++j) {
    if (row.mass[j] == 0 || (kept >> j & 1) == 0) continue;
    if (IsBelowMinP(row.mass[j], Exponent(row.logit[j], row.largest, row.inverse), row.p.min_p)) kept &= ~(1u << j);
  }
}

// The kept mass of the row.
__device__ __forceinline__ uint64_t SumKept(const Row& row, Parities& parity) {
  Shared& s = row.s;
  const uint64_t of_warp = WarpAdd(row.own);
  if (row.lane == 0) s.warp_sum[row.warp] = of_warp;
  __syncthreads();
  if (row.warp == 0) {
    const uint64_t of_block = WarpAdd(row.lane < kWarps ? s.warp_sum[row.lane] : 0);
    if (row.lane < kCluster) Send(&s.sums[row.rank], Message(of_block, 0), s.at_sums, row.lane);
  }
  s.at_sums.Wait(parity.sums);
  parity.sums ^= 1;
  return WarpAdd(row.lane < kCluster ? First(s.sums[row.lane]) : 0);
}

// The earliest of some tokens. Times are not negative, so their bits have the same order.
struct Runner {
  uint64_t time;
  uint32_t id;

  __device__ __forceinline__ void Meet(uint64_t other_time, uint32_t other_id) {
    if (other_time < time || (other_time == time && other_id < id)) time = other_time, id = other_id;
  }
  __device__ __forceinline__ void OfWarp() {
#pragma unroll
    for (int o = 16; o > 0; o /= 2) {
      const uint64_t other_time = __shfl_xor_sync(0xFFFFFFFFu, time, o);
      const uint32_t other_id = __shfl_xor_sync(0xFFFFFFFFu, id, o);
      Meet(other_time, other_id);
    }
  }
};

// RaceTime of a token, within 2^-10 of it, in float32. It excludes most tokens without a logarithm in float64.
__device__ __forceinline__ float AboutRaceTime(uint64_t draw, uint32_t id, uint64_t mass) {
  const uint64_t u = (RandomBits(draw, id) >> 11) + 1;  // of 2^53
  const float rest = static_cast<float>((uint64_t{1} << 53) - u) * 0x1p-53f;
  const float series = rest * (1 + rest * (0.5f + rest * (1.0f / 3)));  // -ln(1 - rest) for a small one
  const float log = rest < 0x1p-6f ? series : -__logf(static_cast<float>(u) * 0x1p-53f);
  return __fdividef(log, static_cast<float>(mass));
}

// Returns the kept token of the row that wins the draw, to every thread of the cluster. Overwrites the logits.
__device__ __forceinline__ int32_t Race(const Row& row, uint32_t kept, uint64_t draw, const Parities& parity) {
  constexpr uint64_t kNever = ~uint64_t{0};
  constexpr float kWithin = 1 + 0x1p-8f;  // only tokens within this factor of the warp's least time can win
  Shared& s = row.s;
  float(&about)[kPitch] = row.logit;
  float least = INFINITY;
#pragma unroll kUnroll
  for (int j = 0; j < kOwn; ++j) {
    const bool races = (kept >> j & 1) != 0 && row.mass[j] != 0;
    about[j] = races ? AboutRaceTime(draw, static_cast<uint32_t>(row.first + j), row.mass[j]) : INFINITY;
    least = fminf(least, about[j]);
  }
  least = __uint_as_float(__reduce_min_sync(0xFFFFFFFFu, __float_as_uint(least)));
  Runner best{kNever, ~0u};
  for (; kept != 0; kept &= kept - 1) {
    const int j = __ffs(static_cast<int>(kept)) - 1;
    if (row.mass[j] == 0 || about[j] > least * kWithin) continue;
    const auto id = static_cast<uint32_t>(row.first + j);
    best.Meet(Bits(RaceTime(UniformOfRace(draw, static_cast<int32_t>(id)), row.mass[j])), id);
  }
  best.OfWarp();
  __syncthreads();  // after warp_largest has been read
  if (row.lane == 0) s.warp_largest[row.warp] = Message(best.time, best.id);
  __syncthreads();
  if (row.warp == 0) {
    const uint4 of_warp = s.warp_largest[row.lane % kWarps];
    best = {First(of_warp), static_cast<uint32_t>(Second(of_warp))};
    best.OfWarp();
    if (row.lane < kCluster) Send(&s.sums[row.rank], Message(best.time, best.id), s.at_sums, row.lane);
  }
  s.at_sums.Wait(parity.sums);
  const uint4 of_block = s.sums[row.lane % kCluster];
  best = {First(of_block), static_cast<uint32_t>(Second(of_block))};
  best.OfWarp();
  return static_cast<int32_t>(best.id);
}

}  // namespace dsv4::sample
