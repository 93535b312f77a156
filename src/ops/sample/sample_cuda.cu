// A cluster of blocks takes a row: logits and masses stay in its shared memory. Sums are of whole numbers, so their order does
// not matter. Cuts are found as the CPU's sampler finds them: tokens are binned by their distance from the largest logit, and
// only the bin in which a sum reaches its mark is put in order.
#include <cooperative_groups.h>

#include <algorithm>

#include "base/random.h"
#include "device/launch.cuh"
#include "ops/block_reduce.cuh"
#include "ops/sample/sample.h"
#include "ops/sample/sample_math.h"

namespace dsv4 {

namespace {

namespace cg = cooperative_groups;

constexpr int kCluster = 16, kThreads = 1024, kWarps = kThreads / 32;
constexpr int kMaxOwn = static_cast<int>(kMaxSampleVocab) / kCluster;  // tokens of a block
constexpr int kNumBins = kThreads;  // of the distance from the largest logit
constexpr float kBinsPerUnit = 32;
constexpr int kMaxList = 2048;  // tokens of a bin that are put in order at once

using Bin = uint4;  // count, and the sum of masses in parts of 16, 16 and 15 bits

struct Candidate {
  uint64_t rank, mass;
};

struct Shared {
  uint64_t mass[kMaxOwn];
  float logit[kMaxOwn];
  Candidate list[kMaxList];     // of one bin: this block's tokens
  Candidate all[kMaxList];      // the row's
  Bin bins[kNumBins];           // this block's
  uint64_t bin_mass[kNumBins];  // the row's
  int bin_count[kNumBins];
  // Written by the blocks of the cluster, two sets in turn: no block is ever two exchanges ahead of another.
  uint64_t exchange[2][kCluster];
  uint64_t exchange2[2][kCluster];
  uint64_t answer[2];
  uint64_t warp_sum[kWarps];
  uint64_t word;
  double warp_weight[kWarps];
  double exchange_weight[kCluster];
  int list_count;
  int flag;
};

__device__ __forceinline__ uint64_t ShuffleXor(uint64_t x, int o) {
  return __shfl_xor_sync(0xFFFFFFFFu, x, o);
}

__device__ __forceinline__ uint64_t WarpAdd(uint64_t x) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) x += ShuffleXor(x, o);
  return x;
}

__device__ __forceinline__ uint64_t BlockAdd(Shared& s, uint64_t x) {
  x = WarpAdd(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) s.warp_sum[threadIdx.x / 32] = x;
  __syncthreads();
  return WarpAdd(s.warp_sum[threadIdx.x % 32]);
}

// The sum over lower threads, and over all.
__device__ __forceinline__ uint64_t BlockPrefix(Shared& s, uint64_t x, uint64_t* total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint64_t before = x;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const uint64_t other = __shfl_up_sync(0xFFFFFFFFu, before, o);
    if (lane >= o) before += other;
  }
  __syncthreads();
  if (lane == 31) s.warp_sum[warp] = before;
  __syncthreads();
  const uint64_t sum = s.warp_sum[lane];
  uint64_t all = sum;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const uint64_t other = __shfl_up_sync(0xFFFFFFFFu, all, o);
    if (lane >= o) all += other;
  }
  *total = __shfl_sync(0xFFFFFFFFu, all, 31);
  return __shfl_sync(0xFFFFFFFFu, all - sum, warp) + before - x;
}

// One row as its cluster sees it.
struct Row {
  Shared& s;
  cg::cluster_group cluster;
  int rank;          // of this block
  int first, count;  // its tokens
  float largest;
  double inverse;   // of the temperature
  float bin_scale;  // bins a logit
  int turn = 0;     // of the exchanges

  __device__ Shared& of(int r) { return *cluster.map_shared_rank(&s, r); }

  // Every block's value, to every block; two at a time.
  __device__ void Exchange(uint64_t a, uint64_t b, uint64_t (&all_a)[kCluster], uint64_t (&all_b)[kCluster]) {
    turn ^= 1;
    if (threadIdx.x < kCluster) {
      Shared& other = of(static_cast<int>(threadIdx.x));
      other.exchange[turn][rank] = a;
      other.exchange2[turn][rank] = b;
    }
    cluster.sync();
#pragma unroll
    for (int r = 0; r < kCluster; ++r) all_a[r] = s.exchange[turn][r], all_b[r] = s.exchange2[turn][r];
  }
  __device__ double ExponentOf(int i) const { return sample::Exponent(s.logit[i], largest, inverse); }
  // Never decreases as the logit falls.
  __device__ int BinOf(int i) const {
    if (s.logit[i] == largest) return 0;
    const float distance = (largest - s.logit[i]) * bin_scale;
    return distance < static_cast<float>(kNumBins - 1) ? static_cast<int>(distance) : kNumBins - 1;
  }
  __device__ uint64_t RankOf(int i) const { return sample::RankOf(s.logit[i], first + i); }

  // What is looked for in the order of likelihood: the first token at which the count reaches `amount`, at which the mass
  // reaches `wanted`, or at which the mass exceeds `amount`.
  enum class Mark { kCount, kTopP, kDraw };
  __device__ static bool Reached(Mark mark, uint64_t sum, uint64_t amount, double wanted) {
    if (mark == Mark::kTopP) return sample::ReachesTopP(sum, wanted);
    return mark == Mark::kCount ? sum >= amount : sum > amount;
  }

  // Its rank, and the mass up to it and with it. The mark is within the row's sum. All blocks call it.
  __device__ uint64_t Locate(Mark mark, uint64_t amount, double wanted, uint64_t* mass_with);
  __device__ uint64_t LocateInOrder(Mark mark, uint64_t amount, double wanted, int bin, uint64_t before,
                                    uint64_t mass_before, uint64_t* mass_with);
  __device__ uint64_t LocateByBits(Mark mark, uint64_t amount, double wanted, int bin, uint64_t before,
                                   uint64_t mass_before, uint64_t* mass_with);
};

__device__ uint64_t Row::Locate(Mark mark, uint64_t amount, double wanted, uint64_t* mass_with) {
  const uint64_t own_mass = s.bin_mass[threadIdx.x],
                 own = mark == Mark::kCount ? static_cast<uint64_t>(s.bin_count[threadIdx.x]) : own_mass;
  uint64_t total, unused;
  const uint64_t before = BlockPrefix(s, own, &total), mass_before = BlockPrefix(s, own_mass, &unused);
  if (!Reached(mark, before, amount, wanted) && Reached(mark, before + own, amount, wanted)) {
    s.flag = static_cast<int>(threadIdx.x);
    s.answer[0] = before;
    s.answer[1] = mass_before;
  }
  __syncthreads();
  const int bin = s.flag;
  const uint64_t at = s.answer[0], mass_at = s.answer[1];
  __syncthreads();
  if (s.bin_count[bin] > kMaxList) return LocateByBits(mark, amount, wanted, bin, at, mass_at, mass_with);
  return LocateInOrder(mark, amount, wanted, bin, at, mass_at, mass_with);
}

// Every block gets all of the bin's tokens; a warp counts what comes before one of them.
__device__ uint64_t Row::LocateInOrder(Mark mark, uint64_t amount, double wanted, int bin, uint64_t before,
                                       uint64_t mass_before, uint64_t* mass_with) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) s.list_count = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kThreads) {
    if (BinOf(i) == bin) s.list[atomicAdd(&s.list_count, 1)] = {RankOf(i), s.mass[i]};
  }
  __syncthreads();
  uint64_t counts[kCluster], unused[kCluster];
  Exchange(static_cast<uint64_t>(s.list_count), 0, counts, unused);
  int n = 0;
#pragma unroll
  for (int r = 0; r < kCluster; ++r) {
    const int of_block = static_cast<int>(counts[r]);
    if (warp % kCluster == r) {  // two warps a block
      for (int i = warp / kCluster * 32 + lane; i < of_block; i += 2 * 32) s.all[n + i] = of(r).list[i];
    }
    n += of_block;
  }
  __syncthreads();
  for (int i = rank * kWarps + warp; i < n; i += kCluster * kWarps) {
    const Candidate own = s.all[i];
    uint64_t number = 0, mass = 0;
    for (int j = lane; j < n; j += 32) {
      const Candidate other = s.all[j];
      if (other.rank > own.rank) ++number, mass += other.mass;
    }
    number = before + WarpAdd(number), mass = mass_before + WarpAdd(mass);
    const uint64_t without = mark == Mark::kCount ? number : mass,
                   with = mark == Mark::kCount ? number + 1 : mass + own.mass;
    if (lane < kCluster && !Reached(mark, without, amount, wanted) && Reached(mark, with, amount, wanted)) {
      of(lane).answer[0] = own.rank;
      of(lane).answer[1] = mass + own.mass;
    }
  }
  cluster.sync();  // also: nobody reads the lists any more
  const uint64_t found = s.answer[0];
  *mass_with = s.answer[1];
  __syncthreads();
  return found;
}

// A bin of very many tokens (logits that are all alike): the rank bit by bit, the largest at which the mark is reached.
__device__ uint64_t Row::LocateByBits(Mark mark, uint64_t amount, double wanted, int bin, uint64_t before,
                                      uint64_t mass_before, uint64_t* mass_with) {
  const auto sums = [&](uint64_t least, uint64_t* mass) {
    uint64_t own = 0, own_mass = 0;
    for (int i = threadIdx.x; i < count; i += kThreads) {
      if (RankOf(i) < least || BinOf(i) != bin) continue;
      ++own;
      own_mass += s.mass[i];
    }
    own = BlockAdd(s, own), own_mass = BlockAdd(s, own_mass);
    uint64_t a[kCluster], b[kCluster], sum = before;
    Exchange(own, own_mass, a, b);
    *mass = mass_before;
#pragma unroll
    for (int r = 0; r < kCluster; ++r) sum += a[r], *mass += b[r];
    return mark == Mark::kCount ? sum : *mass;
  };
  uint64_t found = 0, mass;
  for (int bit = 63; bit >= 0; --bit) {
    const uint64_t least = found | uint64_t{1} << bit;
    if (Reached(mark, sums(least, &mass), amount, wanted)) found = least;
  }
  sums(found, &mass);
  *mass_with = mass;
  return found;
}

__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads)
    SampleKernel(const float* logits, SampleRow* rows, int32_t* tokens, float* logprobs, int v) {
  extern __shared__ __align__(16) uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  AllowNext();
  WaitForPrevious();
  const int64_t r = blockIdx.x / kCluster;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  SampleRow p = rows[r];
  const float* row_logits = logits + r * v;
  const int per_block = (v + kCluster - 1) / kCluster;
  Row row{s, cg::this_cluster(), static_cast<int>(blockIdx.x % kCluster), 0, 0, 0, 0, 0};
  row.first = min(v, row.rank * per_block);
  row.count = min(per_block, v - row.first);

  // Adjusted logits; the largest with its first id, and what is wrong with the row.
  constexpr float kMinusInfinity = -INFINITY;
  bool nan = false, something = false;
  float raw_largest = kMinusInfinity;
#pragma unroll 4
  for (int i = threadIdx.x; i < row.count; i += kThreads) {
    const float x = row_logits[row.first + i];
    nan = nan || x != x;
    something = something || x > kMinusInfinity;
    raw_largest = fmaxf(raw_largest, x);
    s.logit[i] = x;
  }
  if (p.num_bias > 0) {
    __syncthreads();
    for (int j = threadIdx.x; j < p.num_bias; j += kThreads) {
      const int i = p.bias_ids[j] - row.first;
      if (i >= 0 && i < row.count) s.logit[i] = sample::AddBias(s.logit[i], p.bias[j]);
    }
    __syncthreads();
  }
  const bool penalties = p.repeat_penalty != 1.0f || p.presence_penalty != 0 || p.frequency_penalty != 0;
  uint64_t best = 0;
  for (int i = threadIdx.x; i < row.count; i += kThreads) {
    if (penalties) {
      const int outputs = p.output_count ? p.output_count[row.first + i] : 0,
                prompt = p.prompt_count ? p.prompt_count[row.first + i] : 0;
      if (outputs + prompt > 0) {
        s.logit[i] = sample::Penalise(s.logit[i], p.repeat_penalty, p.presence_penalty, p.frequency_penalty,
                                      outputs);
      }
    }
    const int id = row.first + i;
    if (p.allowed != nullptr && (p.allowed[id / 32] >> (id % 32) & 1) == 0) s.logit[i] = kMinusInfinity;
    const uint64_t rank = row.RankOf(i);
    best = rank > best ? rank : best;
  }
#pragma unroll
  for (int o = 16; o > 0; o /= 2) {
    const uint64_t other = ShuffleXor(best, o);
    best = other > best ? other : best;
  }
  raw_largest = WarpMax(raw_largest);
  const uint32_t nans = __ballot_sync(0xFFFFFFFFu, nan), somethings = __ballot_sync(0xFFFFFFFFu, something);
  if (lane == 0) {
    s.warp_sum[warp] = best;
    s.warp_weight[warp] = raw_largest;
  }
  if (threadIdx.x == 0) s.flag = 0;
  __syncthreads();
  if (lane == 0) atomicOr(&s.flag, (nans ? 1 : 0) | (somethings ? 2 : 0));
  best = s.warp_sum[lane];
#pragma unroll
  for (int o = 16; o > 0; o /= 2) {
    const uint64_t other = ShuffleXor(best, o);
    best = other > best ? other : best;
  }
  raw_largest = WarpMax(static_cast<float>(s.warp_weight[lane]));
  __syncthreads();
  {
    uint64_t ranks[kCluster], flags[kCluster];
    row.cluster.sync();  // every block of the cluster runs: its memory may be written
    row.Exchange(best, static_cast<uint64_t>(sample::Bits(raw_largest)) << 32 | static_cast<uint32_t>(s.flag),
                 ranks, flags);
    uint32_t all_flags = 0;
    best = 0;
    raw_largest = kMinusInfinity;
#pragma unroll
    for (int i = 0; i < kCluster; ++i) {
      best = ranks[i] > best ? ranks[i] : best;
      raw_largest = fmaxf(raw_largest, sample::FromBits(static_cast<uint32_t>(flags[i] >> 32)));
      all_flags |= static_cast<uint32_t>(flags[i]);
    }
    nan = all_flags & 1, something = all_flags & 2;
  }
  row.largest = sample::LogitOf(static_cast<uint32_t>(best >> 32));
  const int32_t error = nan                             ? kSampleNan
                        : !something                    ? kSampleNothing
                        : row.largest == kMinusInfinity ? kSampleBanned
                                                        : 0;
  if (error != 0) {
    if (row.rank == 0 && threadIdx.x == 0) {
      tokens[r] = error;
      if (logprobs != nullptr) logprobs[r] = __int_as_float(0x7FFFFFFF);
    }
    return;
  }

  // ln of the sum of the row's own weights.
  double log_sum = 0;
  if (logprobs != nullptr) {
    double sum = 0;
    for (int i = threadIdx.x; i < row.count; i += kThreads) {
      sum += sample::ExpNonPositive(sample::Exponent(row_logits[row.first + i], raw_largest, 1.0));
    }
#pragma unroll
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, o);
    if (lane == 0) s.warp_weight[warp] = sum;
    __syncthreads();
    sum = s.warp_weight[lane];
#pragma unroll
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, o);
    if (threadIdx.x < kCluster) row.of(static_cast<int>(threadIdx.x)).exchange_weight[row.rank] = sum;
    row.cluster.sync();
    sum = 0;
#pragma unroll
    for (int i = 0; i < kCluster; ++i) sum += s.exchange_weight[i];
    log_sum = log(sum);
  }
  const auto choose = [&](int32_t id) {  // by one thread of the cluster
    tokens[r] = id;
    if (logprobs != nullptr)
      logprobs[r] = static_cast<float>(sample::Exponent(row_logits[id], raw_largest, 1.0) - log_sum);
    rows[r].num_outputs = p.num_outputs + 1;
    if (p.output_count != nullptr && p.output_count[id] < 65535) ++p.output_count[id];
  };
  if (p.temperature == 0) {
    if (row.rank == 0 && threadIdx.x == 0) choose(sample::IdOf(best));
    return;
  }

  // Masses, by token and by bin.
  row.inverse = 1.0 / static_cast<double>(p.temperature);
  row.bin_scale = static_cast<float>(fmin(static_cast<double>(kBinsPerUnit) * row.inverse, 1e30));
  const bool is_top_k = p.top_k > 0 && p.top_k < v, cuts = is_top_k || p.top_p < 1.0f;
  if (cuts) {
    s.bins[threadIdx.x] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    uint64_t far_mass = 0;
    int far = 0;
    for (int i = threadIdx.x; i < row.count; i += kThreads) {
      const uint64_t mass = sample::Mass(row.ExponentOf(i));
      const int bin = row.BinOf(i);
      s.mass[i] = mass;
      if (bin == kNumBins - 1) {  // most of a peaked row: not all to one address
        ++far;
        far_mass += mass;
        continue;
      }
      atomicAdd(&s.bins[bin].x, 1u);
      atomicAdd(&s.bins[bin].y, static_cast<uint32_t>(mass & 0xFFFF));
      atomicAdd(&s.bins[bin].z, static_cast<uint32_t>(mass >> 16 & 0xFFFF));
      atomicAdd(&s.bins[bin].w, static_cast<uint32_t>(mass >> 32));
    }
    far = static_cast<int>(WarpAdd(static_cast<uint64_t>(far)));
    far_mass = WarpAdd(far_mass);
    if (lane == 0 && far > 0) {
      Bin& last = s.bins[kNumBins - 1];
      atomicAdd(&last.x, static_cast<uint32_t>(far));
      atomicAdd(&last.y, static_cast<uint32_t>(far_mass & 0xFFFF));
      atomicAdd(&last.z, static_cast<uint32_t>(far_mass >> 16 & 0xFFFF));
      atomicAdd(&last.w, static_cast<uint32_t>(far_mass >> 32));
    }
    row.cluster.sync();
    {  // block r adds up its share of the bins for all; a lane for each block
      const int bin = row.rank * (kNumBins / kCluster) + static_cast<int>(threadIdx.x) / kCluster,
                from = lane % kCluster;
      const Bin part = row.of(from).bins[bin];
      uint64_t mass = part.y + (static_cast<uint64_t>(part.z) << 16) + (static_cast<uint64_t>(part.w) << 32),
               number = part.x;
#pragma unroll
      for (int o = kCluster / 2; o > 0; o /= 2) mass += ShuffleXor(mass, o), number += ShuffleXor(number, o);
      row.of(from).bin_mass[bin] = mass;
      row.of(from).bin_count[bin] = static_cast<int>(number);
    }
    row.cluster.sync();
  } else {
    for (int i = threadIdx.x; i < row.count; i += kThreads) s.mass[i] = sample::Mass(row.ExponentOf(i));
    __syncthreads();
  }

  uint64_t least = 0, kept_mass = 0;  // rank of the last token kept; the mass up to it
  if (is_top_k) {
    least = row.Locate(Row::Mark::kCount, static_cast<uint64_t>(p.top_k), 0, &kept_mass);
  } else if (cuts) {
    uint64_t unused;
    BlockPrefix(s, s.bin_mass[threadIdx.x], &kept_mass);
    (void)unused;
  }
  if (p.top_p < 1.0f)
    least = row.Locate(Row::Mark::kTopP, 0, sample::WantedMass(p.top_p, kept_mass), &kept_mass);

  // What is left: a warp has a run of tokens.
  const int run = (row.count + kWarps - 1) / kWarps, begin = min(row.count, warp * run),
            end = min(row.count, begin + run);
  uint64_t own = 0;
  for (int i = begin + lane; i < end; i += 32) {
    uint64_t mass = s.mass[i];
    if (mass == 0) continue;
    if (row.RankOf(i) < least || (p.min_p > 0 && sample::IsBelowMinP(mass, row.ExponentOf(i), p.min_p)))
      s.mass[i] = mass = 0;
    own += mass;
  }
  own = WarpAdd(own);
  __syncthreads();
  if (lane == 0) s.warp_sum[warp] = own;
  __syncthreads();
  const uint64_t of_warp = s.warp_sum[lane];
  uint64_t blocks[kCluster], unused[kCluster];
  row.Exchange(WarpAdd(of_warp), 0, blocks, unused);
  uint64_t total = 0, block_begin = 0;
#pragma unroll
  for (int i = 0; i < kCluster; ++i) {
    if (i == row.rank) block_begin = total;
    total += blocks[i];
  }
  const uint64_t target = sample::Target(RandomBits(p.seed, p.num_outputs), total);
  if (is_top_k) {
    const uint64_t rank = row.Locate(Row::Mark::kDraw, target, 0, &kept_mass);
    if (row.rank == 0 && threadIdx.x == 0) choose(sample::IdOf(rank));
    return;
  }
  uint64_t passed = block_begin;  // before this warp's run
  for (int w = 0; w < warp; ++w) passed += s.warp_sum[w];
  if (passed > target || passed + own <= target) return;
  for (int first = begin; first < end; first += 32) {
    const uint64_t mass = first + lane < end ? s.mass[first + lane] : 0;
    uint64_t with = mass;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
      const uint64_t other = __shfl_up_sync(0xFFFFFFFFu, with, o);
      if (lane >= o) with += other;
    }
    with += passed;
    const uint32_t reached = __ballot_sync(0xFFFFFFFFu, with > target);
    if (reached != 0) {
      if (lane == __ffs(static_cast<int>(reached)) - 1) choose(row.first + first + lane);
      return;
    }
    passed = __shfl_sync(0xFFFFFFFFu, with, 31);
  }
}

}  // namespace

void SampleCuda(const ExecContext& ctx, const SampleArgs& a) {
  const cudaError_t allowed = cudaFuncSetAttribute(SampleKernel,
                                                   cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (allowed != cudaSuccess) NoteCudaError(allowed, "clusters of 16 blocks");
  Launch(ctx, SampleKernel, dim3(static_cast<unsigned>(a.logits.dim(0) * kCluster)), dim3(kThreads),
         sizeof(Shared), a.logits.f32(), a.rows, a.tokens.i32(), a.logprobs ? a.logprobs.f32() : nullptr,
         static_cast<int>(a.logits.dim(1)));
}

}  // namespace dsv4
