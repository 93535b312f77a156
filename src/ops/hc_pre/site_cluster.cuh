// One bridge for few tokens as one kernel: a cluster of 16 blocks processes a token, a warp one block of 32 columns of
// its four streams. The weights of fn are in registers before the kernel waits for the previous one. Blocks send each
// other their sums as messages (device/cluster.cuh), because a barrier of the cluster would wait for all earlier
// stores. The arithmetic and its order are the same as in DotsKernel and MixKernel (site.cuh, site_mix.cuh), so the
// bits are the same.
#pragma once

#include "device/cluster.cuh"
#include "device/exchange.cuh"
#include "ops/hc_pre/site_mix.cuh"

namespace dsv4::hc {

constexpr int kClusterBlocks = 16;
constexpr int kClusterMixes = 24;

// The data for the sum over kRanks ranks.
template <int kRanks>
struct RankSum {
  ExchangeMemory memory;
  int rank;
};
template <>
struct RankSum<1> {};

// Sends this rank's partial of y, four columns from `element`. The whole warp calls it. The first two of the four lanes
// with the same columns send one pair each, next to their neighbours' pairs, so that whole sectors travel. Blocks that
// run together send the columns of few tokens (exchange.cuh explains why no wait is endless).
template <int kRanks>
__device__ __forceinline__ void Send(const RankSum<kRanks>& ranks, uint32_t tag, int64_t element, const Four& y,
                                     int of_four) {
  if (of_four >= 2) return;
  const bool second = of_four == 1;
  const float a = second ? y.v[2] : y.v[0], b = second ? y.v[3] : y.v[1];
  const int64_t at = element + 2 * of_four;
  PushWords<kRanks>(ranks.memory, ranks.rank, tag, WordPairs{at, at, true, false}, {a, b, 0, 0});
}
template <int kRanks>
__device__ __forceinline__ void AddOthers(const RankSum<kRanks>& ranks, uint32_t tag, int64_t site, int64_t element,
                                          Four& y) {
  float all[kRanks][4];
  PollWords<kRanks>(ranks.memory, ranks.rank, tag, site, element, true, all);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    float part[kRanks];
#pragma unroll
    for (int p = 0; p < kRanks; ++p) part[p] = p == ranks.rank ? y.v[e] : all[p][e];
    y.v[e] = RankTree<kRanks>(part);
  }
}

// Sends the warps' sums of a block, four by four, to every block of the cluster; by 8 kClusterBlocks threads.
template <int kRun>
__device__ __forceinline__ void SendSums(const float (&part)[kRun][32], float (&to)[32], gpu::ClusterBarrier& at) {
  const int quad = static_cast<int>(threadIdx.x) % 8;
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    const float4 v = reinterpret_cast<const float4*>(part[i])[quad];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  gpu::Send(&to[4 * quad],
            make_uint4(__float_as_uint(sum.x), __float_as_uint(sum.y), __float_as_uint(sum.z), __float_as_uint(sum.w)),
            at, static_cast<int>(threadIdx.x) / 8);
}

// The sum of the streams times pre in the lane's columns. The streams are in lanes 8 apart, pre in lanes 0 to 3 of
// `mix`.
__device__ __forceinline__ float4 SumOfStreams(const Four& x, float mix, int lane) {
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float4 of_stream;
    of_stream.x = __shfl_sync(0xFFFFFFFFu, x.v[0], 8 * j + lane % 8);
    of_stream.y = __shfl_sync(0xFFFFFFFFu, x.v[1], 8 * j + lane % 8);
    of_stream.z = __shfl_sync(0xFFFFFFFFu, x.v[2], 8 * j + lane % 8);
    of_stream.w = __shfl_sync(0xFFFFFFFFu, x.v[3], 8 * j + lane % 8);
    AddScaled(__shfl_sync(0xFFFFFFFFu, mix, j), of_stream, sum);
  }
  return sum;
}

// kRun warps with columns, D = 512 kRun, and one warp for Sinkhorn. grid (16 T). kRanks > 1: y is one rank's partial.
template <typename Weight, bool kPost, int kRun, int kRanks>
__global__ void __cluster_dims__(kClusterBlocks, 1, 1) __launch_bounds__(32 * (kRun + 1))
    ClusterSiteKernel(const Site s, const RankSum<kRanks> ranks) {
  constexpr int kStreams = 4, kMixes = kClusterMixes;
  __shared__ __align__(16) float part[kRun][32];
  __shared__ __align__(16) float cluster_part[kClusterBlocks][32];
  __shared__ uint4 cluster_square[kClusterBlocks];  // the first word
  __shared__ float square_part[kRun];
  __shared__ gpu::ClusterBarrier at_parts, at_squares;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rank = static_cast<int>(blockIdx.x % kClusterBlocks);
  const int64_t t = blockIdx.x / kClusterBlocks;
  const int own_stream = lane / 8, column = (rank * kRun + warp) * 32 + lane % 8 * 4;
  const bool has_columns = warp < kRun;
  AllowNext();
  if (threadIdx.x == 0) {
    at_parts.Init(1), at_squares.Init(1);
    BarrierInitFence();
    at_parts.Expect(sizeof cluster_part), at_squares.Expect(sizeof cluster_square);
  }
  __syncwarp();
  // "I run": no block may send to another before that one has begun.
  ClusterArriveRelaxed();

  Four w[kMixes], norm;
  if (has_columns) {
    const Weight* fn = static_cast<const Weight*>(s.fn) + static_cast<int64_t>(own_stream) * s.d + column;
#pragma unroll
    for (int n = 0; n < kMixes; ++n) w[n] = LoadFour(fn + static_cast<int64_t>(n) * kStreams * s.d, 4, true);
    if (s.norm_weight != nullptr) norm = LoadFour(s.norm_weight + column, 4, true);
  }
  const MixWeights mix_weights(s, min(lane, kMixes - 1), kStreams);
  ClusterWait();
  WaitForPrevious();

  Four x;  // of the lane's own stream
  if (has_columns) {
    float* streams = s.streams + t * kStreams * s.d + column;
    if constexpr (kPost) {
      Four y = LoadFour(s.y + t * s.slots * s.d + column, 4, true), slot[kMaxSlots - 1];
#pragma unroll
      for (int a = 1; a < kMaxSlots; ++a) {
        if (a < s.slots) slot[a - 1] = LoadFour(s.y + (t * s.slots + a) * s.d + column, 4, true);
      }
      [[maybe_unused]] uint32_t tag = 0;
      if constexpr (kRanks > 1) tag = ExchangeTag(ranks.memory, s.exchange_site);
      Four old[kStreams];
#pragma unroll
      for (int j = 0; j < kStreams; ++j) old[j] = LoadFour(streams + static_cast<int64_t>(j) * s.d, 4, true);
      const float post = s.post_in[t * kStreams + own_stream];
      float comb[kStreams];
#pragma unroll
      for (int j = 0; j < kStreams; ++j) comb[j] = s.comb_in[(t * kStreams + j) * kStreams + own_stream];
      if (s.slots > 1) {
#pragma unroll
        for (int e = 0; e < 4; ++e) y.v[e] = __fadd_rn(0.0f, y.v[e]);
#pragma unroll
        for (int a = 1; a < kMaxSlots; ++a) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if (a < s.slots) y.v[e] = __fadd_rn(y.v[e], slot[a - 1].v[e]);
          }
        }
      }
      if constexpr (kRanks > 1) {
        const int64_t element = t * s.d + column;
        if (!s.pushed) Send<kRanks>(ranks, tag, element, y, own_stream);
        AddOthers<kRanks>(ranks, tag, s.exchange_site, element, y);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float sum = __fmul_rn(post, y.v[e]);
#pragma unroll
        for (int j = 0; j < kStreams; ++j) sum = fmaf(comb[j], old[j].v[e], sum);
        x.v[e] = sum;
      }
    } else {
      x = LoadFour(streams + static_cast<int64_t>(own_stream) * s.d, 4, true);
    }
    float v[32];
#pragma unroll
    for (int n = 0; n < 32; ++n) v[n] = 0;
#pragma unroll
    for (int n = 0; n < kMixes; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) v[n] = fmaf(w[n].v[e], x.v[e], v[n]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) v[kMixes] = fmaf(x.v[e], x.v[e], v[kMixes]);
    part[warp][lane] = TransposeSum(v);
  }
  __syncthreads();
  static_assert(kRun >= 4);
  if (threadIdx.x < 8 * kClusterBlocks) SendSums(part, cluster_part[rank], at_parts);
  at_parts.Wait(0);  // every block has read `post` and `comb` of the previous bridge
  // Every warp computes the mixes that it needs: lane n has mix n.
  const float product = lane <= kMixes ? SixteenSum(&cluster_part[0][lane], 32) : 0.0f;
  const float square = __shfl_sync(0xFFFFFFFFu, product, kMixes);
  const float mix = lane < kMixes ? MixOf(s, mix_weights, lane, kStreams, product, square) : 0.0f;

  if (!has_columns) {
    if (rank == 0) {
      if (lane >= kStreams && lane < 2 * kStreams) s.post[t * kStreams + lane - kStreams] = mix;
      float a[kStreams][kStreams];
#pragma unroll
      for (int i = 0; i < kStreams * kStreams; ++i)
        a[i / kStreams][i % kStreams] = __shfl_sync(0xFFFFFFFFu, mix, 2 * kStreams + i);
      SinkhornInRegisters<kStreams>(a, s.iters, s.eps);
#pragma unroll
      for (int i = 0; i < kStreams; ++i) {
        if (lane == i) {
          *reinterpret_cast<float4*>(s.comb + t * kStreams * kStreams + kStreams * i) = make_float4(a[i][0], a[i][1],
                                                                                                    a[i][2], a[i][3]);
        }
      }
    }
    return;
  }

  if constexpr (kPost) StoreFour(s.streams + (t * kStreams + own_stream) * s.d + column, x, 4, true);
  float4 sum = SumOfStreams(x, mix, lane);
  if (s.norm_weight != nullptr) {
    const float x_square = EightLaneSum(SquareOf(sum));
    if (lane == 0) square_part[warp] = x_square;
    asm volatile("bar.sync 1, %0;" ::"n"(32 * kRun) : "memory");
    if (warp == 0 && lane < kClusterBlocks) {
      float of_block = 0;
#pragma unroll
      for (int i = 0; i < kRun; ++i) of_block += square_part[i];
      gpu::Send(&cluster_square[rank], make_uint4(__float_as_uint(of_block), 0, 0, 0), at_squares, lane);
    }
    __syncwarp();
    at_squares.Wait(0);
    const float all = WarpSum(lane < kClusterBlocks ? __uint_as_float(cluster_square[lane].x) : 0.0f);
    const float scale = rsqrtf(all / static_cast<float>(s.d) + s.x_norm_eps);
    sum = make_float4(sum.x * scale * norm.v[0], sum.y * scale * norm.v[1], sum.z * scale * norm.v[2],
                      sum.w * scale * norm.v[3]);
  }
  if (own_stream == 0) *reinterpret_cast<float4*>(s.x + t * s.d + column) = sum;
}

}  // namespace dsv4::hc
