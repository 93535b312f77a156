// MixKernel (site.cuh), and a token's mixes, which the other kernels of a bridge also compute.
#pragma once

#include "ops/block_reduce.cuh"
#include "ops/hc_pre/mix.cuh"
#include "ops/hc_pre/site.cuh"

namespace dsv4::hc {

// The model's constants of mix n. They are weights, so they may be read before the wait.
struct MixWeights {
  float scale, base;
  __device__ __forceinline__ MixWeights(const Site& s, int n, int h)
      : scale(s.scale[n < h       ? 0
                      : n < 2 * h ? 1
                                  : 2]),
        base(s.base[n]) {}
};

// Mix n of a token from its product with fn and the streams' sum of squares: pre[n], post[n - H], or a logit of comb.
__device__ __forceinline__ float MixOf(const Site& s, const MixWeights& w, int n, int h, float product, float square) {
  const float m = product * rsqrtf(square / static_cast<float>(static_cast<int64_t>(h) * s.d) + s.site_norm_eps);
  const float logit = fmaf(m, w.scale, w.base);
  return n < h ? Sigmoid(logit) + s.eps : n < 2 * h ? 2.0f * Sigmoid(logit) : logit;
}

constexpr int kMixThreads = 512, kMixWarps = kMixThreads / 32;  // without the extra warp for Sinkhorn

// Threads of a multiprocessor.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
inline constexpr int kMostThreads = 1536;
#else
inline constexpr int kMostThreads = 2048;
#endif

// Stores a token's post and comb, by a warp whose lane n has mix n.
template <int kStreams>
__device__ __forceinline__ void StorePostAndComb(const Site& s, int64_t t, int lane, float mix) {
  if (lane >= kStreams && lane < 2 * kStreams) s.post[t * kStreams + lane - kStreams] = mix;
  float a[kStreams][kStreams];
#pragma unroll
  for (int i = 0; i < kStreams * kStreams; ++i)
    a[i / kStreams][i % kStreams] = __shfl_sync(0xFFFFFFFFu, mix, 2 * kStreams + i);
  SinkhornInRegisters<kStreams>(a, s.iters, s.eps);
  if (lane == 0) {
#pragma unroll
    for (int i = 0; i < kStreams * kStreams; ++i) s.comb[t * kStreams * kStreams + i] = a[i / kStreams][i % kStreams];
  }
}

// 1 / RMS of x; each thread has the part `square` of its squares. Named barrier 1, so that the Sinkhorn warp is not
// waited for.
__device__ __forceinline__ float NormScale(const Site& s, float square, float (&square_part)[kMixWarps]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  square = WarpSum(square);
  if (lane == 0) square_part[warp] = square;
  asm volatile("bar.sync 1, %0;" ::"n"(kMixThreads) : "memory");
  return rsqrtf(WarpSum(lane < kMixWarps ? square_part[lane] : 0.0f) / static_cast<float>(s.d) + s.x_norm_eps);
}

// 1 / RMS of x from the squares of its blocks of 32 columns. Named barrier 1, so that the Sinkhorn warp is not waited
// for.
__device__ __forceinline__ float NormScaleOfBlocks(const Site& s, const float* block_square, int lane) {
  asm volatile("bar.sync 1, %0;" ::"n"(kMixThreads) : "memory");
  const int x_blocks = (s.d + 31) / 32, x_run = (x_blocks + kMixWarps - 1) / kMixWarps;
  float square = 0;
  if (lane < kMixWarps) {
    for (int b = lane * x_run; b < min(x_blocks, (lane + 1) * x_run); ++b) square += block_square[b];
  }
  return rsqrtf(WarpSum(square) / static_cast<float>(s.d) + s.x_norm_eps);
}

// Any H: computes a token's mixes by the block; pre and the logits of comb go to shared memory.
template <int kPitch>
__device__ __forceinline__ void MakeMixes(const Site& s, int64_t t, int h, const float* part, float* pre,
                                          float* logits) {
  for (int n = threadIdx.x; n < s.num_mixes; n += kMixThreads + 32) {
    const float mix = MixOf(s, MixWeights(s, n, h), n, h, SixteenSum(part + n, kPitch),
                            SixteenSum(part + s.num_mixes, kPitch));
    (n < h ? pre[n] : n < 2 * h ? s.post[t * h + n - h] : logits[n - 2 * h]) = mix;
  }
}

// Loads a thread's columns of all streams, four of each of its groups.
template <int kGroups, int kMost>
__device__ __forceinline__ void LoadOwn(const float* streams, int d, float4 (&own)[kGroups][kMost]) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int i = (g * kMixThreads + static_cast<int>(threadIdx.x)) * 4;
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      if (i < d) own[g][j] = *reinterpret_cast<const float4*>(streams + static_cast<int64_t>(j) * d + i);
    }
  }
}

// Loads a thread's columns of the norm's weights, four of each of its groups.
template <int kGroups>
__device__ __forceinline__ void LoadNorm(const float* norm, int d, float4 (&weight)[kGroups]) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int i = (g * kMixThreads + static_cast<int>(threadIdx.x)) * 4;
    if (i < d) weight[g] = *reinterpret_cast<const float4*>(norm + i);
  }
}

// One block per token. kGroups > 0: H = 4, D <= 2048 kGroups, everything aligned. kEarly: the streams are read while
// the products are added. That takes registers, so that fewer blocks share a multiprocessor.
template <int kStreams, int kGroups, bool kEarly = true>
__global__ void __launch_bounds__(kMixThreads + 32, kEarly ? 1 : kMostThreads / (kMixThreads + 32))
    MixKernel(const Site s) {
  constexpr int kMost = kStreams > 0 ? kStreams : static_cast<int>(kMaxStreams);
  __shared__ float part[kMixWarps][(2 + kMost) * kMost + 1 + 32];  // by warp and mix; rows padded to whole warps
  [[maybe_unused]] __shared__ float shared_pre[kMost], logits[kMost * kMost];  // any H
  __shared__ float square_part[kMixWarps];
  float pre[kMost];
  const int h = kStreams > 0 ? kStreams : s.num_streams;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t t = blockIdx.x;
  const float* streams = s.streams + t * h * s.d;
  float* x = s.x + t * s.d;
  AllowNext();
  [[maybe_unused]] float4 weight[kGroups > 0 ? kGroups : 1];
  if constexpr (kGroups > 0 && kEarly) {
    if (s.norm_weight != nullptr && warp < kMixWarps) LoadNorm<kGroups>(s.norm_weight, s.d, weight);
  }
  WaitForPrevious();

  [[maybe_unused]] float4 own[kGroups > 0 ? kGroups : 1][kMost];
  if constexpr (kGroups > 0 && kEarly) {
    if (warp < kMixWarps) LoadOwn<kGroups, kMost>(streams, s.d, own);
  }
  const int np = s.padded_mixes(), blocks = s.blocks(), run = (blocks + kMixWarps - 1) / kMixWarps;
  if (warp < kMixWarps) {
    for (int n = lane; n <= s.num_mixes; n += 32) {
      const float* p = s.partial + t * blocks * np + n;
      float sum = 0;
#pragma unroll 8
      for (int b = warp * run; b < min(blocks, (warp + 1) * run); ++b) sum += p[static_cast<int64_t>(b) * np];
      part[warp][n] = sum;
    }
  }
  __syncthreads();
  static_assert(kMixWarps == 16);
  constexpr int kPitch = sizeof(part[0]) / sizeof(float);
  if constexpr (kStreams > 0) {  // every warp computes the mixes that it needs: lane n has mix n
    const float product = lane <= s.num_mixes ? SixteenSum(&part[0][lane], kPitch) : 0.0f;
    const float square = __shfl_sync(0xFFFFFFFFu, product, s.num_mixes);
    const float mix = lane < s.num_mixes ? MixOf(s, MixWeights(s, lane, h), lane, h, product, square) : 0.0f;
#pragma unroll
    for (int j = 0; j < kMost; ++j) pre[j] = __shfl_sync(0xFFFFFFFFu, mix, j);
    if (warp == kMixWarps) {
      if (s.post == nullptr) return;
      StorePostAndComb<kStreams>(s, t, lane, mix);
      return;
    }
  } else {
    MakeMixes<kPitch>(s, t, h, part[0], shared_pre, logits);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kMost; ++j) pre[j] = j < h ? shared_pre[j] : 0.0f;
    if (warp == kMixWarps) {
      if (s.post == nullptr) return;
      SinkhornInShared(logits, h, s.iters, s.eps);
      for (int i = lane; i < h * h; i += 32) s.comb[t * h * h + i] = logits[i];
      return;
    }
  }

  if constexpr (kGroups > 0) {
    __shared__ float block_square[kGroups * kMixThreads / 8];  // by blocks of 32 columns
    float4 sum[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int i = (g * kMixThreads + static_cast<int>(threadIdx.x)) * 4;
      sum[g] = make_float4(0, 0, 0, 0);
      if (i < s.d) {
        if constexpr (!kEarly) {
#pragma unroll
          for (int j = 0; j < kMost; ++j)
            own[g][j] = *reinterpret_cast<const float4*>(streams + static_cast<int64_t>(j) * s.d + i);
        }
#pragma unroll
        for (int j = 0; j < kMost; ++j) AddScaled(pre[j], own[g][j], sum[g]);
      }
      const float square = EightLaneSum(SquareOf(sum[g]));
      if (lane % 8 == 0) block_square[(g * kMixThreads + static_cast<int>(threadIdx.x)) / 8] = square;
    }
    float scale = 1;
    if (s.norm_weight != nullptr) scale = NormScaleOfBlocks(s, block_square, lane);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int i = (g * kMixThreads + static_cast<int>(threadIdx.x)) * 4;
      if (i >= s.d) continue;
      float4 out = sum[g];
      if (s.norm_weight != nullptr) {
        if constexpr (!kEarly) weight[g] = *reinterpret_cast<const float4*>(s.norm_weight + i);
        out = make_float4(out.x * scale * weight[g].x, out.y * scale * weight[g].y, out.z * scale * weight[g].z,
                          out.w * scale * weight[g].w);
      }
      *reinterpret_cast<float4*>(x + i) = out;
    }
  } else {
    float square = 0;
    for (int i = threadIdx.x; i < s.d; i += kMixThreads) {
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kMost; ++j) {
        if (j < h) sum = fmaf(pre[j], streams[static_cast<int64_t>(j) * s.d + i], sum);
      }
      square = fmaf(sum, sum, square);
      x[i] = sum;
    }
    if (s.norm_weight == nullptr) return;
    const float scale = NormScale(s, square, square_part);
    for (int i = threadIdx.x; i < s.d; i += kMixThreads) x[i] = x[i] * scale * s.norm_weight[i];
  }
}

}  // namespace dsv4::hc
