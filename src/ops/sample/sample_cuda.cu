// A cluster of blocks takes a row, a thread sixteen neighbouring tokens, whose logits and masses stay in shared memory. Blocks
// send each other what they find (device/cluster.cuh); no barrier of the cluster is on the way. Sums are of whole numbers, so
// their order does not matter. Cuts are found as the CPU's sampler finds them: tokens are binned (bins.cuh) by their distance
// from the largest logit, and only the bin in which a sum reaches its mark is put in order.
#include "base/random.h"
#include "device/launch.cuh"
#include "ops/sample/bins.cuh"
#include "ops/sample/sample.h"
#include "ops/sample/sample_math.h"

namespace dsv4 {

namespace {

using gpu::ClusterBarrier;
using gpu::First;
using gpu::Message;
using gpu::Second;
using gpu::Send;
using gpu::WarpAdd;
using gpu::WarpPrefix;
using sample::Histogram;
using sample::kBins;
using sample::kBinsPerUnit;
using sample::kCluster;
using sample::kFar;
using sample::kThreads;
using sample::Mark;
using sample::Place;

constexpr int kWarps = kThreads / 32, kOwn = 16;
constexpr int kPitch = kOwn + 1;  // a thread's tokens in shared memory: no two lanes at one bank
constexpr int kUnroll = 4;
static_assert(kWarps == kCluster && kCluster * kThreads * kOwn >= kMaxSampleVocab);
constexpr int kMaxCandidates = 128;             // tokens of a block's that are put in order at once
constexpr int kDigitBits = 10, kRankBits = 50;  // of a rank: the logit's key and 18 bits of the id

struct Shared {
  uint64_t mass[kThreads][kPitch];
  float logit[kThreads][kPitch];
  uint4 candidates[kCluster][kMaxCandidates];  // from each block: ranks and masses
  Histogram distances, digits;
  uint4 bins[kCluster][32];  // from each block: mass and count of a group's bins
  uint4 largest[kCluster], counts[kCluster], sums[kCluster], raw_sums[kCluster];  // from each block
  uint4 own[kMaxCandidates];
  uint32_t own_token[kMaxCandidates];  // its place in the block
  uint32_t keep[kThreads * kOwn / 32];
  uint4 warp_largest[kWarps];
  uint64_t warp_sum[kWarps], warp_raw_sum[kWarps];
  uint64_t before, mass_before;
  double wanted;
  int found, num_own;
  ClusterBarrier at_largest, at_distances, at_digits, at_bins, at_candidates, at_sums, at_raw_sums;
};
static_assert(sizeof(Shared) <= kSharedMemoryOfABlock);

__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads)
    SampleKernel(const float* logits, SampleRow* rows, int32_t* tokens, float* logprobs, int v) {
  extern __shared__ __align__(16) uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  AllowNext();
  const int64_t r = blockIdx.x / kCluster;
  const int rank = static_cast<int>(blockIdx.x % kCluster), thread = static_cast<int>(threadIdx.x),
            warp = thread / 32, lane = thread % 32;
  if (thread == 0) {
    s.at_largest.Init(1), s.at_distances.Init(1), s.at_digits.Init(1), s.at_bins.Init(1);
    s.at_candidates.Init(kCluster), s.at_sums.Init(1), s.at_raw_sums.Init(1);
    BarrierInitFence();
    s.at_largest.Expect(sizeof s.largest), s.at_distances.Expect(sizeof s.distances.groups);
    s.at_digits.Expect(sizeof s.digits.groups), s.at_bins.Expect(sizeof s.bins);
    s.at_sums.Expect(sizeof s.sums), s.at_raw_sums.Expect(sizeof s.raw_sums);
    s.num_own = 0;
  }
  Clear(s.distances);
  ClusterArrive();
  ClusterWait();
  WaitForPrevious();

  // Adjusted logits; the largest with its first id, and what is wrong with the row.
  constexpr float kMinusInfinity = -INFINITY;
  const float* row_logits = logits + r * v;
  const int first = (rank * kThreads + thread) * kOwn, own_tokens = max(0, min(kOwn, v - first));
  float(&logit)[kPitch] = s.logit[thread];
  uint64_t(&mass)[kPitch] = s.mass[thread];
  float largest = kMinusInfinity;
  bool nan = false;
  if (own_tokens == kOwn && reinterpret_cast<uintptr_t>(row_logits) % 16 == 0) {
    float x[kOwn];
#pragma unroll
    for (int j = 0; j < kOwn; j += 4)
      *reinterpret_cast<float4*>(x + j) = *reinterpret_cast<const float4*>(row_logits + first + j);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      nan = nan || x[j] != x[j];
      largest = fmaxf(largest, x[j]);
      logit[j] = x[j];
    }
  } else {
#pragma unroll 4
    for (int j = 0; j < kOwn; ++j) {  // behind the last token: -inf, which has no mass
      const float x = j < own_tokens ? row_logits[first + j] : kMinusInfinity;
      nan = nan || x != x;
      largest = fmaxf(largest, x);
      logit[j] = x;
    }
  }
  const SampleRow p = rows[r];
  const uint32_t raw_nan_key = nan ? 0xFFFFFFFFu : sample::KeyOf(largest);  // above all others
  const bool penalties = p.repeat_penalty != 1.0f || p.presence_penalty != 0 || p.frequency_penalty != 0;
  if (p.num_bias > 0 || penalties || p.allowed != nullptr) {
    __syncthreads();
    for (int i = thread; i < p.num_bias; i += kThreads) {
      const int at = p.bias_ids[i] - rank * kThreads * kOwn;
      if (at < 0 || at >= kThreads * kOwn) continue;
      float& x = s.logit[at / kOwn][at % kOwn];
      x = sample::AddBias(x, p.bias[i]);
    }
    __syncthreads();
    largest = kMinusInfinity;
#pragma unroll 2
    for (int j = 0; j < own_tokens; ++j) {
      const int id = first + j;
      float x = logit[j];
      if (penalties) {
        const int outputs = p.output_count ? p.output_count[id] : 0,
                  prompt = p.prompt_count ? p.prompt_count[id] : 0;
        if (outputs + prompt > 0)
          x = sample::Penalise(x, p.repeat_penalty, p.presence_penalty, p.frequency_penalty, outputs);
      }
      if (p.allowed != nullptr && (p.allowed[id / 32] >> (id % 32) & 1) == 0) x = kMinusInfinity;
      largest = fmaxf(largest, x);
      logit[j] = x;
    }
  }
  uint32_t not_id = 0;
  if (p.temperature == 0) {
    for (int j = own_tokens - 1; j >= 0; --j) {
      if (logit[j] == largest) not_id = ~static_cast<uint32_t>(first + j);
    }
  }
  uint32_t key = sample::KeyOf(largest), raw_key = raw_nan_key;
  const auto largest_of = [&] {  // of a warp
    const uint32_t most = __reduce_max_sync(0xFFFFFFFFu, key);
    not_id = __reduce_max_sync(0xFFFFFFFFu, key == most ? not_id : 0u);
    raw_key = __reduce_max_sync(0xFFFFFFFFu, raw_key);
    key = most;
  };
  largest_of();
  if (lane == 0) s.warp_largest[warp] = make_uint4(key, not_id, raw_key, 0);
  __syncthreads();
  if (warp == 0) {
    const uint4 of_warp = s.warp_largest[lane % kWarps];
    key = of_warp.x, not_id = of_warp.y, raw_key = of_warp.z;
    largest_of();
    if (lane < kCluster) Send(&s.largest[rank], make_uint4(key, not_id, raw_key, 0), s.at_largest, lane);
  }
  const bool is_top_k = p.top_k > 0 && p.top_k < v, is_top_p = p.top_p < 1.0f, cuts = is_top_k || is_top_p;
  const uint64_t random = RandomBits(p.seed, p.num_outputs);
  const double inverse = 1.0 / static_cast<double>(p.temperature);
  const float bin_scale = static_cast<float>(fmin(static_cast<double>(kBinsPerUnit) * inverse, 1e30));
  s.at_largest.Wait(0);
  {
    const uint4 of_block = s.largest[lane % kCluster];
    key = of_block.x, not_id = of_block.y, raw_key = of_block.z;
    largest_of();
  }
  largest = sample::LogitOf(key);
  const float raw_largest = sample::LogitOf(raw_key);
  const int32_t error = raw_key == 0xFFFFFFFFu                     ? kSampleNan
                        : raw_key == sample::KeyOf(kMinusInfinity) ? kSampleNothing
                        : key == sample::KeyOf(kMinusInfinity)     ? kSampleBanned
                                                                   : 0;
  if (error != 0) {
    if (rank == 0 && thread == 0) {
      tokens[r] = error;
      if (logprobs != nullptr) logprobs[r] = __int_as_float(0x7FFFFFFF);
    }
    return;
  }

  // The mass of the row's own logits at temperature 1.
  uint64_t raw_sum = 0;
  if (logprobs != nullptr) {
    uint64_t sum = 0;
#pragma unroll 2
    for (int j = 0; j < own_tokens; ++j)
      sum += sample::Mass(sample::Exponent(row_logits[first + j], raw_largest, 1.0));
    sum = WarpAdd(sum);
    if (lane == 0) s.warp_raw_sum[warp] = sum;
    __syncthreads();
    if (warp == 0) {
      sum = WarpAdd(lane < kWarps ? s.warp_raw_sum[lane] : 0);
      if (lane < kCluster) Send(&s.raw_sums[rank], Message(sum, 0), s.at_raw_sums, lane);
    }
    s.at_raw_sums.Wait(0);
    raw_sum = WarpAdd(lane < kCluster ? First(s.raw_sums[lane]) : 0);
  }
  const auto choose = [&](int32_t id) {  // by one thread of the cluster
    tokens[r] = id;
    if (logprobs != nullptr) {
      logprobs[r] = static_cast<float>(sample::Exponent(row_logits[id], raw_largest, 1.0) -
                                       log(static_cast<double>(raw_sum) * (1 / sample::kMassUnit)));
    }
    rows[r].num_outputs = p.num_outputs + 1;
    if (p.output_count != nullptr && p.output_count[id] < 65535) ++p.output_count[id];
  };

  // Masses, by token and by bin. A bin never falls as the logit falls.
  uint64_t own = 0;                      // of this thread's tokens that are kept
  uint32_t near = 0;                     // those that have a bin
  const auto distance_of = [&](int j) {  // of equal infinities 0
    return fmaxf((largest - logit[j]) * bin_scale, 0.0f);
  };
  if (p.temperature != 0 && !cuts) {
#pragma unroll kUnroll
    for (int j = 0; j < kOwn; ++j)
      own += mass[j] = sample::Mass(sample::Exponent(logit[j], largest, inverse));
  } else if (p.temperature != 0) {
#pragma unroll 1
    for (int first_of = 0; first_of < kOwn; first_of += kUnroll) {
      uint64_t m[kUnroll];
      int bin[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int j = first_of + u;
        m[u] = sample::Mass(sample::Exponent(logit[j], largest, inverse));
        const float distance = distance_of(j);
        bin[u] = distance < static_cast<float>(kFar) ? static_cast<int>(distance) : -1;
        near |= (bin[u] >= 0 ? 1u : 0u) << j;
        mass[j] = m[u];
        own += m[u];
      }
      AddToBins(s.distances, bin, m, is_top_k);
    }
  }

  uint64_t amount = static_cast<uint64_t>(p.top_k), kept_mass = 0;  // 0: all of the row's
  uint32_t kept = (1u << kOwn) - 1, digits_parity = 0, bins_parity = 0, candidates_parity = 0, sums_parity = 0;
  Mark mark = is_top_k ? Mark::kCount : is_top_p ? Mark::kTopP : Mark::kNone;
  if (p.temperature == 0) {
    if (rank == 0 && thread == 0) choose(static_cast<int32_t>(~not_id));
    return;
  }
  if (cuts) {
    __syncthreads();
    SendGroups(s.distances, s.at_distances, rank);
  }
#pragma unroll 1
  for (;;) {
    if (mark != Mark::kNone) {
      // Tokens in front of the mark for certain, and those of the bin that holds it.
      uint32_t in_front = 0, in_bin = near;
      uint64_t before = 0, mass_before = 0;
      double wanted = kept_mass == 0 ? -1.0 : sample::WantedMass(p.top_p, kept_mass);
      bool all = false;
#pragma unroll 1
      for (int level = 0;; ++level) {  // by distance, then by the digits of the rank
        const auto digit_of = [&](int j) {
          const uint64_t bits = static_cast<uint64_t>(sample::KeyOf(logit[j])) << 18 |
                                (~static_cast<uint32_t>(first + j) & 0x3FFFFu);
          return kBins - 1 - static_cast<int>(bits >> (kRankBits - kDigitBits * level) & (kBins - 1));
        };
        Histogram& h = level == 0 ? s.distances : s.digits;
        if (level > 0) {
          __syncthreads();
          Clear(h);
          if (thread == 0) s.num_own = 0;
          __syncthreads();
          for (uint32_t bits = in_bin; bits != 0; bits &= bits - 1) {
            const int j = __ffs(static_cast<int>(bits)) - 1;
            AddToBins<1>(h, {digit_of(j)}, {mass[j]}, is_top_k);
          }
          __syncthreads();
          SendGroups(h, s.at_digits, rank);
        }
        if (warp == 0) {
          if (level == 0) {
            s.at_distances.Wait(0);
          } else {
            s.at_digits.Wait(digits_parity);
            if (lane == 0) s.at_digits.Expect(sizeof h.groups);
          }
          Place place{-1, before, mass_before};
#pragma unroll 1
          for (int step = 0; step < 2; ++step) {
            const int group = place.at;
            place = PlaceOf(step == 0 ? h.groups : s.bins, mark, place.before, place.mass_before, amount,
                            p.top_p, &wanted);
            if (step == 1) place.at += group * 32;
            if (place.at < 0 || step == 1) break;
            const int bin = place.at * 32 + lane;
            const uint4 message = Message(MassOf(h, bin), h.count[bin]);
#pragma unroll 4
            for (int to = 0; to < kCluster; ++to) Send(&s.bins[rank][lane], message, s.at_bins, to);
            s.at_bins.Wait(bins_parity);
            if (lane == 0) s.at_bins.Expect(sizeof s.bins);
          }
          if (lane == 0) {
            s.found = place.at, s.before = place.before, s.mass_before = place.mass_before;
            s.wanted = wanted;
          }
        }
        if (thread < kThreads * kOwn / 32) s.keep[thread] = 0;
        __syncthreads();
        const int found = s.found;
        before = s.before, mass_before = s.mass_before, wanted = s.wanted;
        if (level > 0) digits_parity ^= 1;
        if (found < 0) {  // fewer tokens have a bin
          all = true;
          break;
        }
        bins_parity ^= 1;
        const float found_distance = static_cast<float>(found);
        uint32_t tested = in_bin;
        in_bin = 0;
        if (level == 0) {
#pragma unroll 4
          for (int j = 0; j < kOwn; ++j) {
            const float distance = distance_of(j);
            in_front |= (distance < found_distance ? 1u : 0u) << j;
            in_bin |= (distance < found_distance + 1 ? 1u : 0u) << j;
          }
          in_front &= tested;
          in_bin &= tested & ~in_front;
        } else {
          for (; tested != 0; tested &= tested - 1) {
            const int j = __ffs(static_cast<int>(tested)) - 1, digit = digit_of(j);
            if (digit < found) in_front |= 1u << j;
            if (digit == found) in_bin |= 1u << j;
          }
        }
        for (uint32_t bits = in_bin; bits != 0; bits &= bits - 1) {
          const int j = __ffs(static_cast<int>(bits)) - 1, slot = atomicAdd(&s.num_own, 1);
          if (slot >= kMaxCandidates) break;
          s.own[slot] = Message(sample::RankOf(logit[j], first + j), mass[j]);
          s.own_token[slot] = static_cast<uint32_t>(thread * kOwn + j);
        }
        __syncthreads();
        const int num_own = s.num_own, listed = min(num_own, kMaxCandidates);  // a warp sends them to a block
        if (lane == 0) {
          s.at_candidates.ExpectAt(warp,
                                   static_cast<uint32_t>(sizeof(uint4)) * static_cast<uint32_t>(1 + listed));
          Send(&s.counts[rank], make_uint4(static_cast<uint32_t>(num_own), 0, 0, 0), s.at_candidates, warp);
        }
        for (int i = lane; i < listed; i += 32) Send(&s.candidates[rank][i], s.own[i], s.at_candidates, warp);
        s.at_candidates.Wait(candidates_parity);
        candidates_parity ^= 1;
        const int of_lane = static_cast<int>(s.counts[lane % kCluster].x);
        const int most = __reduce_max_sync(0xFFFFFFFFu, of_lane);
        if (most > kMaxCandidates) continue;  // logits that are all alike
        for (int i = warp; i < num_own; i += kWarps) {
          const uint64_t own_rank = First(s.own[i]), own_mass = Second(s.own[i]);
          uint32_t number = 0;
          uint64_t in_front_mass = 0;
#pragma unroll 1
          for (int k = lane; k - lane < most; k += 32) {
#pragma unroll 8
            for (int from = 0; from < kCluster; ++from) {
              const uint4 other = s.candidates[from][k];
              const bool in_front_of = k < static_cast<int>(s.counts[from].x) && First(other) > own_rank;
              number += in_front_of ? 1 : 0;
              in_front_mass += in_front_of ? Second(other) : 0;
            }
          }
          const uint64_t without = before + WarpAdd(number),
                         mass_without = mass_before + WarpAdd(in_front_mass);
          if (lane != 0 || Reached(mark, without, mass_without, amount, wanted)) continue;
          if (mark != Mark::kDraw) {
            atomicOr(&s.keep[s.own_token[i] / 32], 1u << (s.own_token[i] % 32));
          } else if (Reached(mark, without + 1, mass_without + own_mass, amount, wanted)) {
            choose(sample::IdOf(own_rank));
          }
        }
        break;
      }
      if (mark == Mark::kDraw) return;
      if (!all) {
        __syncthreads();
        kept &= in_front | (in_bin & s.keep[thread / 2] >> (thread % 2 * kOwn));
        if (thread == 0) s.num_own = 0;
        own = 0;
        for (uint32_t bits = kept; bits != 0; bits &= bits - 1)
          own += mass[__ffs(static_cast<int>(bits)) - 1];
      }
    }

    // What is left.
    const bool is_last = mark != Mark::kCount || !is_top_p;
    if (is_last && p.min_p > 0) {
      own = 0;
      for (int j = 0; j < kOwn; ++j) {
        if (mass[j] == 0 || (kept >> j & 1) == 0) continue;
        if (sample::IsBelowMinP(mass[j], sample::Exponent(logit[j], largest, inverse), p.min_p))
          kept &= ~(1u << j);
        else
          own += mass[j];
      }
    }
    const uint64_t of_warp = WarpAdd(own);
    if (lane == 0) s.warp_sum[warp] = of_warp;
    __syncthreads();
    const uint64_t of_warps = lane < kWarps ? s.warp_sum[lane] : 0;
    if (warp == 0) {
      const uint64_t of_block = WarpAdd(of_warps);
      if (lane < kCluster) Send(&s.sums[rank], Message(of_block, 0), s.at_sums, lane);
    }
    const uint64_t own_begin = WarpAdd(lane < warp ? of_warps : 0) + WarpPrefix(own) - own;  // in the block
    s.at_sums.Wait(sums_parity);
    sums_parity ^= 1;
    const uint64_t of_blocks = lane < kCluster ? First(s.sums[lane]) : 0, total = WarpAdd(of_blocks);
    if (!is_last) {
      if (thread == 0) s.at_sums.Expect(sizeof s.sums);
      kept_mass = total;
      mark = Mark::kTopP;
      continue;
    }
    const uint64_t target = sample::Target(random, total);
    if (is_top_k) {
      amount = target;
      mark = Mark::kDraw;
      continue;
    }
    uint64_t passed = WarpAdd(lane < rank ? of_blocks : 0) + own_begin;
    if (passed > target || passed + own <= target) return;
    for (; kept != 0; kept &= kept - 1) {
      const int j = __ffs(static_cast<int>(kept)) - 1;
      passed += mass[j];
      if (passed > target) {
        choose(first + j);
        return;
      }
    }
    return;
  }
}

}  // namespace

void SampleCuda(const ExecContext& ctx, const SampleArgs& a) {
  const cudaError_t allowed = cudaFuncSetAttribute(SampleKernel,
                                                   cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (allowed != cudaSuccess) NoteCudaError(ctx, allowed, "clusters of 16 blocks");
  Launch(ctx, SampleKernel, dim3(static_cast<unsigned>(a.logits.dim(0) * kCluster)), dim3(kThreads),
         sizeof(Shared), a.logits.f32(), a.rows, a.tokens.i32(), a.logprobs ? a.logprobs.f32() : nullptr,
         static_cast<int>(a.logits.dim(1)));
}

}  // namespace dsv4
