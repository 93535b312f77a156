// The kernels of one mHC site (hc_pre.h, hc_post.h, hc_head.h, hc_bridge.h).
//
//   DotsKernel   streams = post * y + comb * streams (with kPost), and per block of columns the products of the streams
//                with the rows of `fn` and the sum of squares
//   MixKernel    adds the blocks' products in order, makes the mixes, sums the streams and norms the sum
//
// A block of DotsKernel owns columns [d0, d0 + width) of all streams, width = 128 / H rounded down to a multiple of 4.
// Sums: four columns in a lane, lanes by a butterfly, column blocks 16 apart in a warp of MixKernel, then its warps by a
// butterfly. None of it depends on T.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "device/launch.cuh"
#include "ops/block_reduce.cuh"
#include "ops/hc_pre/streams.h"
#include "tensor/quant_tensor.h"

namespace dsv4::hc {

// Everything that the two kernels read and write; device pointers.
struct Site {
  float* streams = nullptr;          // [T, H, D]; written when y is there
  const float* y = nullptr;          // [T, D] of the site before this one, or null
  const float* post_in = nullptr;    // [T, H] of the site before
  const float* comb_in = nullptr;    // [T, H, H]
  const void* fn = nullptr;          // [N, H*D]
  const float* base = nullptr;       // [N]
  const float* scale = nullptr;      // [3], the head: [1]
  const float* norm_weight = nullptr;  // [D] or null: x is not normed
  float* x = nullptr;                // [T, D]
  float* post = nullptr;             // [T, H]; null: a head, which has pre only
  float* comb = nullptr;             // [T, H, H]
  float* partial = nullptr;          // [T, blocks, Np]
  int num_streams = 0, d = 0, num_mixes = 0, iters = 0;
  int64_t num_tokens = 0;
  float eps = 0, site_norm_eps = 0, x_norm_eps = 0;
  bool bf16 = false;                 // of fn
  bool vector = false;               // rows of four can be read at once everywhere

  __host__ __device__ int width() const { return 128 / num_streams / 4 * 4; }
  __host__ __device__ int blocks() const { return (d + width() - 1) / width(); }
  __host__ __device__ int padded_mixes() const { return (num_mixes + 1 + 31) / 32 * 32; }
};

struct alignas(16) Four {
  float v[4];
};

__device__ __forceinline__ Four LoadFour(const float* p, int count, bool vector) {
  Four f;
  if (vector) {
    if (count > 0) {
      const float4 v = *reinterpret_cast<const float4*>(p);
      return {v.x, v.y, v.z, v.w};
    }
    return {0, 0, 0, 0};
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) f.v[i] = i < count ? p[i] : 0.0f;
  return f;
}

__device__ __forceinline__ Four LoadFour(const __nv_bfloat16* p, int count, bool vector) {
  Four f;
  if (vector) {
    if (count <= 0) return {0, 0, 0, 0};
    const uint2 v = *reinterpret_cast<const uint2*>(p);
    f.v[0] = __uint_as_float(v.x << 16), f.v[1] = __uint_as_float(v.x & 0xFFFF0000u);
    f.v[2] = __uint_as_float(v.y << 16), f.v[3] = __uint_as_float(v.y & 0xFFFF0000u);
    return f;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) f.v[i] = i < count ? __bfloat162float(p[i]) : 0.0f;
  return f;
}

__device__ __forceinline__ void StoreFour(float* p, const Four& f, int count, bool vector) {
  if (vector) {
    if (count > 0) *reinterpret_cast<float4*>(p) = make_float4(f.v[0], f.v[1], f.v[2], f.v[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < count) p[i] = f.v[i];
  }
}

// Sums 32 values over the lanes of a warp: lane i gets the sum of v[i]. The same tree as WarpSum's.
template <int kOffset = 16>
__device__ __forceinline__ float TransposeSum(float (&v)[32]) {
  const bool high = threadIdx.x & kOffset;
#pragma unroll
  for (int i = 0; i < kOffset; ++i) {
    const float keep = high ? v[i + kOffset] : v[i], send = high ? v[i] : v[i + kOffset];
    v[i] = keep + __shfl_xor_sync(0xFFFFFFFFu, send, kOffset);
  }
  if constexpr (kOffset > 1) TransposeSum<kOffset / 2>(v);
  return v[0];
}

constexpr int kDotsThreads = 256, kDotsWarps = kDotsThreads / 32;
constexpr int kRowsPerWarp = 3;  // rows of fn that a warp holds: 24 in all
constexpr int kGroup = 8;        // tokens whose sums are made together

// One column of the streams after a site: new[k] = post[k] * y + sum_j comb[j, k] * old[j], as hc_post does it.
template <int kStreams>
__device__ __forceinline__ void MixColumn(const float* post, const float* comb, float y, const float* old, float* out,
                                          int h) {
  const int n = kStreams > 0 ? kStreams : h;
#pragma unroll
  for (int k = 0; k < (kStreams > 0 ? kStreams : static_cast<int>(kMaxStreams)); ++k) {
    if (k >= n) break;
    float sum = post[k] * y;
#pragma unroll
    for (int j = 0; j < (kStreams > 0 ? kStreams : static_cast<int>(kMaxStreams)); ++j) {
      if (j >= n) break;
      sum += comb[j * n + k] * old[j];
    }
    out[k] = sum;
  }
}

// grid (blocks, ceil(T / tokens_per_block)); kStreams 4, or 0: any number.
template <int kStreams, typename Weight, bool kPost>
__global__ void __launch_bounds__(kDotsThreads) DotsKernel(const Site s, int tokens_per_block) {
  constexpr int kMost = kStreams > 0 ? kStreams : static_cast<int>(kMaxStreams);
  __shared__ Four tile[kGroup][32];  // the block's columns of a group of tokens: lane order
  __shared__ float mixes[kGroup][kMost + kMost * kMost];
  const int h = kStreams > 0 ? kStreams : s.num_streams;
  const int width = kStreams > 0 ? 128 / kStreams / 4 * 4 : s.width(), quads = width / 4;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int d0 = static_cast<int>(blockIdx.x) * width;
  const int own_stream = lane / quads, own_column = d0 + lane % quads * 4;
  const int own_count = own_stream < h ? s.d - own_column : 0;
  const int64_t k_row = static_cast<int64_t>(h) * s.d;
  const int np = s.padded_mixes(), blocks = s.blocks();

  Four w[kRowsPerWarp];
  const auto load_rows = [&](int first) {
#pragma unroll
    for (int i = 0; i < kRowsPerWarp; ++i) {
      const int n = first + i;
      w[i] = LoadFour(static_cast<const Weight*>(s.fn) + n * k_row + static_cast<int64_t>(own_stream) * s.d + own_column,
                      n < s.num_mixes ? own_count : 0, s.vector);
    }
  };
  load_rows(warp * kRowsPerWarp);
  AllowNext();
  WaitForPrevious();

  const int64_t begin = static_cast<int64_t>(blockIdx.y) * tokens_per_block;
  const int64_t end = min(begin + tokens_per_block, s.num_tokens);
  for (int64_t t0 = begin; t0 < end; t0 += kGroup) {
    const int count = static_cast<int>(min(static_cast<int64_t>(kGroup), end - t0));
    if constexpr (kPost) {
      const int per_token = h + h * h;
      for (int i = threadIdx.x; i < count * per_token; i += kDotsThreads) {
        const int token = i / per_token, m = i % per_token;
        mixes[token][m] = m < h ? s.post_in[(t0 + token) * h + m] : s.comb_in[(t0 + token) * h * h + m - h];
      }
      Four y, old[kMost];
      const int token = static_cast<int>(threadIdx.x) / quads, quad = static_cast<int>(threadIdx.x) % quads;
      const int columns = token < count ? s.d - d0 - quad * 4 : 0;
      float* at = s.streams + (t0 + token) * k_row + d0 + quad * 4;
      if (columns > 0) {  // the loads do not wait for the mixes
        y = LoadFour(s.y + (t0 + token) * s.d + d0 + quad * 4, columns, s.vector);
#pragma unroll
        for (int j = 0; j < kMost; ++j) {
          if (j < h) old[j] = LoadFour(at + static_cast<int64_t>(j) * s.d, columns, s.vector);
        }
      }
      __syncthreads();
      if (columns > 0) {
        Four mixed[kMost];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float in[kMost], out[kMost];
#pragma unroll
          for (int j = 0; j < kMost; ++j) in[j] = j < h ? old[j].v[i] : 0.0f;
          MixColumn<kStreams>(mixes[token], mixes[token] + h, y.v[i], in, out, h);
#pragma unroll
          for (int k = 0; k < kMost; ++k) mixed[k].v[i] = k < h && i < columns ? out[k] : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < kMost; ++k) {
          if (k >= h) break;
          StoreFour(at + static_cast<int64_t>(k) * s.d, mixed[k], columns, s.vector);
          tile[token][k * quads + quad] = mixed[k];
        }
      }
    } else {
      for (int token = warp; token < count; token += kDotsWarps) {
        tile[token][lane] = LoadFour(s.streams + (t0 + token) * k_row + static_cast<int64_t>(own_stream) * s.d + own_column,
                                     own_count, s.vector);
      }
    }
    __syncthreads();
    float* out = s.partial + (t0 * blocks + blockIdx.x) * np;
    const int64_t out_stride = static_cast<int64_t>(blocks) * np;
    for (int first = warp * kRowsPerWarp; first < s.num_mixes || first == warp * kRowsPerWarp; first += kDotsWarps * kRowsPerWarp) {
      if (s.num_mixes > kDotsWarps * kRowsPerWarp) load_rows(first);
      float v[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) v[i] = 0;
      if (own_count > 0) {
#pragma unroll
        for (int token = 0; token < kGroup; ++token) {
          if (token < count) {
            const Four x = tile[token][lane];
#pragma unroll
            for (int i = 0; i < kRowsPerWarp; ++i) {
#pragma unroll
              for (int e = 0; e < 4; ++e) v[i * kGroup + token] = fmaf(w[i].v[e], x.v[e], v[i * kGroup + token]);
            }
          }
        }
        if (warp < count) {
          const Four x = tile[warp][lane];
#pragma unroll
          for (int e = 0; e < 4; ++e) v[kRowsPerWarp * kGroup] = fmaf(x.v[e], x.v[e], v[kRowsPerWarp * kGroup]);
        }
      }
      const float sum = TransposeSum(v);
      if (lane < kRowsPerWarp * kGroup) {
        const int n = first + lane / kGroup, token = lane % kGroup;
        if (token < count && n < s.num_mixes) out[token * out_stride + n] = sum;
      } else if (lane == kRowsPerWarp * kGroup && warp < count && first < kDotsWarps * kRowsPerWarp) {
        out[warp * out_stride + s.num_mixes] = sum;
      }
    }
    __syncthreads();  // `tile` and `mixes` are written again
  }
}

__device__ __forceinline__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Within 1 ulp, without the branches of an exact division.
__device__ __forceinline__ float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// comb = A scaled by rows and columns: A[j, k] / (row[j] * column[k]). Dividing by (sum + eps) multiplies a factor by
// its sum + eps, which needs A and the factors only: row'[j] = sum_k A[j, k] / column[k] + eps * row[j].
// One thread; A [H, H] (source, destination) holds logits and becomes comb.
template <int kStreams>
__device__ __forceinline__ void SinkhornInRegisters(float (&a)[kStreams][kStreams], int iters, float eps) {
  float row[kStreams], column[kStreams], inverse_row[kStreams], inverse_column[kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    float largest = a[j][0], sum = 0;
#pragma unroll
    for (int k = 1; k < kStreams; ++k) largest = fmaxf(largest, a[j][k]);
#pragma unroll
    for (int k = 0; k < kStreams; ++k) sum += a[j][k] = expf(a[j][k] - largest);
#pragma unroll
    for (int k = 0; k < kStreams; ++k) a[j][k] = fmaf(a[j][k], Reciprocal(sum), eps);
    row[j] = inverse_row[j] = column[j] = inverse_column[j] = 1;
  }
  for (int iter = 0; iter < iters; ++iter) {
    if (iter > 0) {
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        float sum = eps * row[j];
#pragma unroll
        for (int k = 0; k < kStreams; ++k) sum = fmaf(a[j][k], inverse_column[k], sum);
        row[j] = sum;
        inverse_row[j] = Reciprocal(sum);
      }
    }
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
      float sum = eps * column[k];
#pragma unroll
      for (int j = 0; j < kStreams; ++j) sum = fmaf(a[j][k], inverse_row[j], sum);
      column[k] = sum;
      inverse_column[k] = Reciprocal(sum);
    }
  }
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
#pragma unroll
    for (int k = 0; k < kStreams; ++k) a[j][k] = a[j][k] * inverse_row[j] * inverse_column[k];
  }
}

// The same by one warp for any H <= 8, in shared memory.
__device__ __forceinline__ void SinkhornInShared(float* a, int h, int iters, float eps) {
  const int lane = threadIdx.x % 32;
  __syncwarp();
  if (lane < h) {
    float* row = a + lane * h;
    float largest = row[0], sum = 0;
    for (int k = 1; k < h; ++k) largest = fmaxf(largest, row[k]);
    for (int k = 0; k < h; ++k) sum += row[k] = expf(row[k] - largest);
    for (int k = 0; k < h; ++k) row[k] = row[k] / sum + eps;
  }
  __syncwarp();
  for (int iter = 0; iter < iters; ++iter) {
    if (iter > 0) {
      if (lane < h) {
        float sum = eps;
        for (int k = 0; k < h; ++k) sum += a[lane * h + k];
        for (int k = 0; k < h; ++k) a[lane * h + k] /= sum;
      }
      __syncwarp();
    }
    if (lane < h) {
      float sum = eps;
      for (int j = 0; j < h; ++j) sum += a[j * h + lane];
      for (int j = 0; j < h; ++j) a[j * h + lane] /= sum;
    }
    __syncwarp();
  }
}

constexpr int kMixThreads = 512, kMixWarps = kMixThreads / 32;  // and one more warp, for Sinkhorn

// One block a token. kGroups > 0: H = 4, D <= 2048 kGroups, everything aligned, streams stay in registers.
template <int kStreams, int kGroups>
__global__ void __launch_bounds__(kMixThreads + 32) MixKernel(const Site s) {
  constexpr int kMost = kStreams > 0 ? kStreams : static_cast<int>(kMaxStreams);
  __shared__ float part[kMixWarps][(2 + kMost) * kMost + 1 + 32];  // by warp and mix; rows padded to whole warps
  __shared__ float pre[kMost], logits[kMost * kMost];
  __shared__ float square_part[kMixWarps];
  const int h = kStreams > 0 ? kStreams : s.num_streams;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t t = blockIdx.x;
  const float* streams = s.streams + t * h * s.d;
  float* x = s.x + t * s.d;
  AllowNext();
  float4 weight[kGroups > 0 ? kGroups : 1];
  if constexpr (kGroups > 0) {
    if (s.norm_weight != nullptr && warp < kMixWarps) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int i = (g * kMixThreads + static_cast<int>(threadIdx.x)) * 4;
        if (i < s.d) weight[g] = *reinterpret_cast<const float4*>(s.norm_weight + i);
      }
    }
  }
  WaitForPrevious();

  float4 own[kGroups > 0 ? kGroups : 1][kMost];
  if constexpr (kGroups > 0) {  // under way while the products are added up
    if (warp < kMixWarps) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int i = (g * kMixThreads + static_cast<int>(threadIdx.x)) * 4;
#pragma unroll
        for (int j = 0; j < kMost; ++j) {
          if (i < s.d) own[g][j] = *reinterpret_cast<const float4*>(streams + static_cast<int64_t>(j) * s.d + i);
        }
      }
    }
  }
  const int np = s.padded_mixes(), blocks = s.blocks();
  if (warp < kMixWarps) {
    for (int n = lane; n <= s.num_mixes; n += 32) {
      const float* p = s.partial + t * blocks * np + n;
      float sum = 0;
#pragma unroll 8
      for (int b = warp; b < blocks; b += kMixWarps) sum += p[static_cast<int64_t>(b) * np];
      part[warp][n] = sum;
    }
  }
  __syncthreads();
  for (int n = warp; n < s.num_mixes; n += kMixWarps + 1) {
    const float product = WarpSum(lane < kMixWarps ? part[lane][n] : 0.0f);
    const float square = WarpSum(lane < kMixWarps ? part[lane][s.num_mixes] : 0.0f);
    if (lane == 0) {
      const float m = product * rsqrtf(square / static_cast<float>(static_cast<int64_t>(h) * s.d) + s.site_norm_eps);
      if (n < h) {
        pre[n] = Sigmoid(m * s.scale[0] + s.base[n]) + s.eps;
      } else if (n < 2 * h) {
        s.post[t * h + n - h] = 2.0f * Sigmoid(m * s.scale[1] + s.base[n]);
      } else {
        logits[n - 2 * h] = m * s.scale[2] + s.base[n];
      }
    }
  }
  __syncthreads();

  if (warp == kMixWarps) {
    if (s.post == nullptr) return;
    if constexpr (kStreams > 0) {
      if (lane == 0) {
        float a[kMost][kMost];
#pragma unroll
        for (int i = 0; i < kMost * kMost; ++i) a[i / kMost][i % kMost] = logits[i];
        SinkhornInRegisters<kMost>(a, s.iters, s.eps);
#pragma unroll
        for (int i = 0; i < kMost * kMost; ++i) s.comb[t * kMost * kMost + i] = a[i / kMost][i % kMost];
      }
    } else {
      SinkhornInShared(logits, h, s.iters, s.eps);
      for (int i = lane; i < h * h; i += 32) s.comb[t * h * h + i] = logits[i];
    }
    return;
  }

  // Named barrier 1: the Sinkhorn warp is not waited for.
  const auto square_sum = [&](float square) {
    square = WarpSum(square);
    if (lane == 0) square_part[warp] = square;
    asm volatile("bar.sync 1, %0;" ::"n"(kMixThreads) : "memory");
    return WarpSum(lane < kMixWarps ? square_part[lane] : 0.0f);
  };
  float square = 0;
  if constexpr (kGroups > 0) {
    float4 sum[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int i = (g * kMixThreads + static_cast<int>(threadIdx.x)) * 4;
      sum[g] = make_float4(0, 0, 0, 0);
      if (i >= s.d) continue;
#pragma unroll
      for (int j = 0; j < kMost; ++j) {
        const float p = pre[j];
        sum[g].x = fmaf(p, own[g][j].x, sum[g].x);
        sum[g].y = fmaf(p, own[g][j].y, sum[g].y);
        sum[g].z = fmaf(p, own[g][j].z, sum[g].z);
        sum[g].w = fmaf(p, own[g][j].w, sum[g].w);
      }
      square = fmaf(sum[g].x, sum[g].x, square);
      square = fmaf(sum[g].y, sum[g].y, square);
      square = fmaf(sum[g].z, sum[g].z, square);
      square = fmaf(sum[g].w, sum[g].w, square);
    }
    float scale = 1;
    if (s.norm_weight != nullptr) scale = rsqrtf(square_sum(square) / static_cast<float>(s.d) + s.x_norm_eps);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int i = (g * kMixThreads + static_cast<int>(threadIdx.x)) * 4;
      if (i >= s.d) continue;
      float4 out = sum[g];
      if (s.norm_weight != nullptr) {
        out = make_float4(out.x * scale * weight[g].x, out.y * scale * weight[g].y, out.z * scale * weight[g].z,
                          out.w * scale * weight[g].w);
      }
      *reinterpret_cast<float4*>(x + i) = out;
    }
  } else {
    for (int i = threadIdx.x; i < s.d; i += kMixThreads) {
      float sum = 0;
      for (int j = 0; j < h; ++j) sum = fmaf(pre[j], streams[static_cast<int64_t>(j) * s.d + i], sum);
      square = fmaf(sum, sum, square);
      x[i] = sum;
    }
    if (s.norm_weight == nullptr) return;
    const float scale = rsqrtf(square_sum(square) / static_cast<float>(s.d) + s.x_norm_eps);
    for (int i = threadIdx.x; i < s.d; i += kMixThreads) x[i] = x[i] * scale * s.norm_weight[i];
  }
}

inline bool Aligned(const void* p, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

// Runs both kernels for every token, in as many parts as the scratch memory asks for.
void RunSite(const ExecContext& ctx, Site site);

}  // namespace dsv4::hc
