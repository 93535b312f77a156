// Bins of a row's tokens by likelihood. Each block of a cluster adds its own tokens' masses; then the bin is found in
// which a sum over all blocks reaches its mark.
#pragma once

#include "base/sample_math.h"
#include "device/cluster.cuh"

namespace dsv4::sample {

inline constexpr int kCluster = 16, kThreads = 512;
// Bins of the distance from the largest logit, in groups of 32. Tokens beyond the last bin have no mass: e^-33 2^46 <
// 1/2.
inline constexpr int kBins = 1024, kFar = kBins - 1;
inline constexpr float kBinsPerUnit = 31;
static_assert(kBins / 32 == 32);

struct Histogram {
  uint32_t low[kBins], high[kBins];  // sums of masses
  uint32_t count[kBins];
  uint4 groups[kCluster][32];  // from each block: mass and count of each of its groups
};

// The target of a search in the order of likelihood: the first token at which the count reaches `amount`, or at which
// the mass reaches `wanted`.
enum class Mark { kNone, kCount, kTopP };

__device__ __forceinline__ bool Reached(Mark mark, uint64_t number, uint64_t mass, uint64_t amount, double wanted) {
  return mark == Mark::kTopP ? ReachesTopP(mass, wanted) : number >= amount;
}

// Adds a few tokens at once; a bin below 0 is ignored.
template <int kCount>
__device__ __forceinline__ void AddToBins(Histogram& h, const int (&bin)[kCount], const uint64_t (&mass)[kCount],
                                          bool counts) {
  uint32_t before[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    before[i] = 0;
    if (bin[i] >= 0) before[i] = atomicAdd(&h.low[bin[i]], static_cast<uint32_t>(mass[i]));
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const uint32_t low = static_cast<uint32_t>(mass[i]),
                   high = static_cast<uint32_t>(mass[i] >> 32) + (before[i] + low < low ? 1 : 0);
    if (high != 0 && bin[i] >= 0) atomicAdd(&h.high[bin[i]], high);
  }
  if (!counts) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (bin[i] >= 0) atomicAdd(&h.count[bin[i]], 1u);
  }
}

__device__ __forceinline__ void Clear(Histogram& h) {
#pragma unroll
  for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kThreads)
    h.low[bin] = h.high[bin] = h.count[bin] = 0;
}

__device__ __forceinline__ uint64_t MassOf(const Histogram& h, int bin) {
  return static_cast<uint64_t>(h.high[bin]) << 32 | h.low[bin];
}

// Sends the groups to every block.
__device__ __forceinline__ void SendGroups(Histogram& h, gpu::ClusterBarrier& barrier, int rank) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kThreads) {
    const uint64_t mass = gpu::WarpAdd(MassOf(h, bin));
    const uint32_t count = gpu::WarpAdd(h.count[bin]);
    if (lane < kCluster) gpu::Send(&h.groups[rank][bin / 32], gpu::Message(mass, count), barrier, lane);
  }
}

// Finds which of 32 groups or bins, one per lane, contains the mark (-1: none), and the sums before it. If `wanted` is
// below 0, first sets it to top_p of their total mass. A warp calls it.
struct Place {
  int at;
  uint64_t before, mass_before;
};
__device__ __forceinline__ Place PlaceOf(const uint4 (&parts)[kCluster][32], Mark mark, uint64_t before,
                                         uint64_t mass_before, uint64_t amount, float top_p, double* wanted) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  uint64_t mass = 0;
  uint32_t number = 0;
#pragma unroll 8
  for (int r = 0; r < kCluster; ++r) {
    const uint4 part = parts[r][lane];
    mass += gpu::First(part), number += part.z;
  }
  if (mark != Mark::kCount) number = 0;
  const uint64_t mass_with = mass_before + gpu::WarpPrefix(mass),
                 with = before + (mark == Mark::kCount ? gpu::WarpPrefix(number) : 0);
  if (*wanted < 0) *wanted = WantedMass(top_p, __shfl_sync(0xFFFFFFFFu, mass_with, 31));
  const bool here = !Reached(mark, with - number, mass_with - mass, amount, *wanted) &&
                    Reached(mark, with, mass_with, amount, *wanted);
  const int at = __ffs(static_cast<int>(__ballot_sync(0xFFFFFFFFu, here))) - 1;
  return {at, __shfl_sync(0xFFFFFFFFu, with - number, max(at, 0)),
          __shfl_sync(0xFFFFFFFFu, mass_with - mass, max(at, 0))};
}

}  // namespace dsv4::sample
