// One mHC site for few tokens as one kernel: a cluster of 16 blocks takes a token, a warp a block of 32 columns of its four
// streams. The weights of fn are in registers before the kernel waits for the one in front of it. The arithmetic and its order
// are those of DotsKernel and MixKernel (site.cuh): the bits are the same.
#pragma once

#include <cooperative_groups.h>

#include "ops/hc_pre/site.cuh"

namespace dsv4::hc {

constexpr int kClusterBlocks = 16;
constexpr int kClusterMixes = 24;

// kRun warps with columns, D = 512 kRun, and one warp for Sinkhorn. grid (16 T).
template <typename Weight, bool kPost, int kRun>
__global__ void __cluster_dims__(kClusterBlocks, 1, 1) __launch_bounds__(32 * (kRun + 1))
    ClusterSiteKernel(const Site s) {
  namespace cg = cooperative_groups;
  constexpr int kStreams = 4, kMixes = kClusterMixes;
  __shared__ float part[kRun][32];
  __shared__ float cluster_part[kClusterBlocks][32], cluster_square[kClusterBlocks];
  __shared__ float square_part[kRun];
  cg::cluster_group cluster = cg::this_cluster();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rank = static_cast<int>(blockIdx.x % kClusterBlocks);
  const int64_t t = blockIdx.x / kClusterBlocks;
  const int own_stream = lane / 8, column = (rank * kRun + warp) * 32 + lane % 8 * 4;
  const bool has_columns = warp < kRun;
  AllowNext();
  // "I run": nothing may be written into a block's shared memory before it has begun.
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");

  Four w[kMixes], norm;
  if (has_columns) {
    const Weight* fn = static_cast<const Weight*>(s.fn) + static_cast<int64_t>(own_stream) * s.d + column;
#pragma unroll
    for (int n = 0; n < kMixes; ++n) w[n] = LoadFour(fn + static_cast<int64_t>(n) * kStreams * s.d, 4, true);
    if (s.norm_weight != nullptr) norm = LoadFour(s.norm_weight + column, 4, true);
  }
  const MixWeights mix_weights(s, min(lane, kMixes - 1), kStreams);
  WaitForPrevious();

  Four x;  // of the lane's own stream
  if (has_columns) {
    float* streams = s.streams + t * kStreams * s.d + column;
    if constexpr (kPost) {
      const Four y = LoadFour(s.y + t * s.d + column, 4, true);
      Four old[kStreams];
#pragma unroll
      for (int j = 0; j < kStreams; ++j) old[j] = LoadFour(streams + static_cast<int64_t>(j) * s.d, 4, true);
      const float post = s.post_in[t * kStreams + own_stream];
      float comb[kStreams];
#pragma unroll
      for (int j = 0; j < kStreams; ++j) comb[j] = s.comb_in[(t * kStreams + j) * kStreams + own_stream];
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
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");  // every block runs
  {  // the block's sums, to every block
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kRun; ++i) sum += part[i][lane];
    for (int r = warp; r < kClusterBlocks; r += kRun + 1)
      cluster.map_shared_rank(&cluster_part[rank][0], r)[lane] = sum;
  }
  cluster.sync();  // every block has read the old streams
  // Every warp makes the mixes it needs: lane n mix n.
  const float product = lane <= kMixes ? SixteenSum(&cluster_part[0][lane], 32) : 0.0f;
  const float square = __shfl_sync(0xFFFFFFFFu, product, kMixes);
  const float mix = lane < kMixes ? MixOf(s, mix_weights, lane, kStreams, product, square) : 0.0f;

  if (!has_columns) {
    if (s.norm_weight != nullptr) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
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
          *reinterpret_cast<float4*>(s.comb + t * kStreams * kStreams + kStreams * i) = make_float4(
              a[i][0], a[i][1], a[i][2], a[i][3]);
        }
      }
    }
    if (s.norm_weight != nullptr) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    return;
  }

  if constexpr (kPost) StoreFour(s.streams + (t * kStreams + own_stream) * s.d + column, x, 4, true);
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    float4 of_stream;
    of_stream.x = __shfl_sync(0xFFFFFFFFu, x.v[0], 8 * j + lane % 8);
    of_stream.y = __shfl_sync(0xFFFFFFFFu, x.v[1], 8 * j + lane % 8);
    of_stream.z = __shfl_sync(0xFFFFFFFFu, x.v[2], 8 * j + lane % 8);
    of_stream.w = __shfl_sync(0xFFFFFFFFu, x.v[3], 8 * j + lane % 8);
    AddScaled(__shfl_sync(0xFFFFFFFFu, mix, j), of_stream, sum);
  }
  if (s.norm_weight != nullptr) {
    const float x_square = EightLaneSum(SquareOf(sum));
    if (lane == 0) square_part[warp] = x_square;
    asm volatile("bar.sync 1, %0;" ::"n"(32 * kRun) : "memory");
    if (warp == 0 && lane < kClusterBlocks) {
      float of_block = 0;
#pragma unroll
      for (int i = 0; i < kRun; ++i) of_block += square_part[i];
      *cluster.map_shared_rank(&cluster_square[rank], lane) = of_block;
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
    const float all = WarpSum(lane < kClusterBlocks ? cluster_square[lane] : 0.0f);
    const float scale = rsqrtf(all / static_cast<float>(s.d) + s.x_norm_eps);
    sum = make_float4(sum.x * scale * norm.v[0], sum.y * scale * norm.v[1], sum.z * scale * norm.v[2],
                      sum.w * scale * norm.v[3]);
  }
  if (own_stream == 0) *reinterpret_cast<float4*>(s.x + t * s.d + column) = sum;
}

}  // namespace dsv4::hc
