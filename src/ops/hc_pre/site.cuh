// The kernels of one bridge ("site" in code; hc_pre.h, hc_post.h, hc_head.h, hc_bridge.h).
//
//   DotsKernel   streams = post * y + comb * streams (with kPost), and per block of columns the products of the streams
//                with the rows of `fn` and the sum of squares
//   MixKernel    (site_mix.cuh) adds the blocks' products in order, computes the mixes, sums the streams and norms the
//                sum
//
// A block of DotsKernel owns columns [d0, d0 + width) of all streams, width = 128 / H rounded down to a multiple of 4.
// Order of the sums: four columns in a lane, lanes by a butterfly, 16 runs of column blocks in order, the runs by a
// butterfly. The order does not depend on T.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "device/launch.cuh"
#include "ops/hc_pre/streams.h"
#include "tensor/quant_tensor.h"

namespace dsv4::hc {

// The data that the two kernels read and write; device pointers.
struct Site {
  float* streams = nullptr;            // [T, H, D]; written if y is set
  const float* y = nullptr;            // [T, D] of the previous bridge, or null
  int slots = 1;                       // more than 1: y is [T, slots, D], summed over the slots
  const float* post_in = nullptr;      // [T, H] of the previous bridge
  const float* comb_in = nullptr;      // [T, H, H]
  const void* fn = nullptr;            // [N, H*D]
  const float* base = nullptr;         // [N]
  const float* scale = nullptr;        // [3], the head: [1]
  const float* norm_weight = nullptr;  // [D] or null: x is not normed
  float* x = nullptr;                  // [T, D]
  float* post = nullptr;               // [T, H]; null: a head, which has pre only
  float* comb = nullptr;               // [T, H, H]
  uint8_t* x_blocks = nullptr;         // also x in blocks, of all tokens (activation_blocks.cuh); prefill only
  int64_t first_token = 0;             // of these T tokens
  int row_blocks8 = 0;                 // of all tokens
  float* partial = nullptr;            // [T, blocks, Np]
  int num_streams = 0, d = 0, num_mixes = 0, iters = 0;
  int block_columns = 0;  // of the partial sums; 0: DotsKernel's
  int64_t num_tokens = 0;
  float eps = 0, site_norm_eps = 0, x_norm_eps = 0;
  bool bf16 = false;        // of fn
  bool vector = false;      // all arrays allow reads of four columns at once
  bool sums_ranks = false;  // y is a rank's partial
  bool pushed = false;      // and already sent to the others
  int64_t exchange_site = 0;

  __host__ __device__ int width() const { return block_columns > 0 ? block_columns : 128 / num_streams / 4 * 4; }
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

// Sums 32 values over the lanes of a warp: lane i gets the sum of v[i]. The same tree as in WarpSum.
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

__device__ __forceinline__ void AddScaled(float p, const float4& x, float4& sum) {
  sum.x = fmaf(p, x.x, sum.x);
  sum.y = fmaf(p, x.y, sum.y);
  sum.z = fmaf(p, x.z, sum.z);
  sum.w = fmaf(p, x.w, sum.w);
}

__device__ __forceinline__ float SquareOf(const float4& x) {
  return fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, __fmul_rn(x.x, x.x))));
}

__device__ __forceinline__ float EightLaneSum(float x) {
#pragma unroll
  for (int o = 4; o > 0; o /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, o);
  return x;
}

constexpr int kMaxSlots = 8;

constexpr int kDotsThreads = 256, kDotsWarps = kDotsThreads / 32;
constexpr int kRowsPerWarp = 3;  // rows of fn that a warp holds: 24 in all
constexpr int kGroup = 8;        // tokens whose sums are computed together

// One column of the streams after a bridge: new[k] = post[k] * y + sum_j comb[j, k] * old[j], as in hc_post.
template <int kStreams>
__device__ __forceinline__ void MixColumn(const float* post, const float* comb, float y, const float* old, float* out,
                                          int h) {
  const int n = kStreams > 0 ? kStreams : h;
#pragma unroll
  for (int k = 0; k < (kStreams > 0 ? kStreams : static_cast<int>(kMaxStreams)); ++k) {
    if (k >= n) break;
    float sum = __fmul_rn(post[k], y);
#pragma unroll
    for (int j = 0; j < (kStreams > 0 ? kStreams : static_cast<int>(kMaxStreams)); ++j) {
      if (j >= n) break;
      sum = fmaf(comb[j * n + k], old[j], sum);
    }
    out[k] = sum;
  }
}

// Four columns of a token's streams after a bridge; only `columns` of them exist. `mixes`: post and comb.
template <int kStreams, int kMost>
__device__ __forceinline__ void MixFour(const float* mixes, const Four& y, const Four (&old)[kMost], int columns, int h,
                                        Four (&mixed)[kMost]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float in[kMost], out[kMost];
#pragma unroll
    for (int j = 0; j < kMost; ++j) in[j] = j < h ? old[j].v[i] : 0.0f;
    MixColumn<kStreams>(mixes, mixes + h, y.v[i], in, out, h);
#pragma unroll
    for (int k = 0; k < kMost; ++k) mixed[k].v[i] = k < h && i < columns ? out[k] : 0.0f;
  }
}

// The products of a group's tokens with a warp's rows of fn, and the sum of squares of the warp's token. Lane kGroup
// row + token has the sum over the block's columns, lane kRowsPerWarp * kGroup the squares'. `has`: the lane has
// columns.
__device__ __forceinline__ float GroupSums(const Four (&tile)[kGroup][32], const Four (&w)[kRowsPerWarp], int count,
                                           bool has, int warp, int lane) {
  float v[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) v[i] = 0;
  if (has) {
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
  return TransposeSum(v);
}

// grid (blocks, ceil(T / tokens_per_block)); kStreams 4, or 0: any number.
template <int kStreams, typename Weight, bool kPost>
__global__ void __launch_bounds__(kDotsThreads) DotsKernel(const Site s, int tokens_per_block) {
  constexpr int kMost = kStreams > 0 ? kStreams : static_cast<int>(kMaxStreams);
  __shared__ Four tile[kGroup][32];  // the block's columns of a group of tokens, in lane order
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
      w[i] = LoadFour(
          static_cast<const Weight*>(s.fn) + n * k_row + static_cast<int64_t>(own_stream) * s.d + own_column,
          n < s.num_mixes ? own_count : 0, s.vector);
    }
  };
  load_rows(warp * kRowsPerWarp);
  AllowNext();
  WaitForPrevious();

  const int64_t begin = static_cast<int64_t>(blockIdx.y) * tokens_per_block;
  const int64_t end = min(begin + tokens_per_block, s.num_tokens);
  // With kPost a thread mixes four columns of one token, while its reads for the next group are in flight.
  const int per_token = h + h * h, own_token = static_cast<int>(threadIdx.x) / quads,
            quad = static_cast<int>(threadIdx.x) % quads;
  [[maybe_unused]] Four y, old[kMost];
  [[maybe_unused]] float own_mixes[kPost ? (kGroup * (kMost + kMost * kMost) + kDotsThreads - 1) / kDotsThreads : 1];
  const auto load_group = [&](int64_t t0) {
    if constexpr (kPost) {
      const int count = static_cast<int>(min(static_cast<int64_t>(kGroup), end - t0));
#pragma unroll
      for (int k = 0; k < static_cast<int>(sizeof(own_mixes) / sizeof(float)); ++k) {
        const int i = k * kDotsThreads + static_cast<int>(threadIdx.x), token = i / per_token, m = i % per_token;
        if (token < count)
          own_mixes[k] = m < h ? s.post_in[(t0 + token) * h + m] : s.comb_in[(t0 + token) * h * h + m - h];
      }
      const int columns = own_token < count ? s.d - d0 - quad * 4 : 0;
      if (columns <= 0) return;
      y = LoadFour(s.y + (t0 + own_token) * s.d + d0 + quad * 4, columns, s.vector);
#pragma unroll
      for (int j = 0; j < kMost; ++j) {
        if (j < h)
          old[j] = LoadFour(s.streams + (t0 + own_token) * k_row + static_cast<int64_t>(j) * s.d + d0 + quad * 4,
                            columns, s.vector);
      }
    }
  };
  if (begin < end) load_group(begin);
  for (int64_t t0 = begin; t0 < end; t0 += kGroup) {
    const int count = static_cast<int>(min(static_cast<int64_t>(kGroup), end - t0));
    if constexpr (kPost) {
#pragma unroll
      for (int k = 0; k < static_cast<int>(sizeof(own_mixes) / sizeof(float)); ++k) {
        const int i = k * kDotsThreads + static_cast<int>(threadIdx.x);
        if (i < count * per_token) mixes[i / per_token][i % per_token] = own_mixes[k];
      }
      const int columns = own_token < count ? s.d - d0 - quad * 4 : 0;
      __syncthreads();
      if (columns > 0) {
        float* at = s.streams + (t0 + own_token) * k_row + d0 + quad * 4;
        Four mixed[kMost];
        MixFour<kStreams>(mixes[own_token], y, old, columns, h, mixed);
#pragma unroll
        for (int k = 0; k < kMost; ++k) {
          if (k >= h) break;
          StoreFour(at + static_cast<int64_t>(k) * s.d, mixed[k], columns, s.vector);
          tile[own_token][k * quads + quad] = mixed[k];
        }
      }
      if (t0 + kGroup < end) load_group(t0 + kGroup);
    } else {
      for (int token = warp; token < count; token += kDotsWarps) {
        tile[token][lane] = LoadFour(
            s.streams + (t0 + token) * k_row + static_cast<int64_t>(own_stream) * s.d + own_column, own_count,
            s.vector);
      }
    }
    __syncthreads();
    float* out = s.partial + (t0 * blocks + blockIdx.x) * np;
    const int64_t out_stride = static_cast<int64_t>(blocks) * np;
    for (int first = warp * kRowsPerWarp; first < s.num_mixes || first == warp * kRowsPerWarp;
         first += kDotsWarps * kRowsPerWarp) {
      if (s.num_mixes > kDotsWarps * kRowsPerWarp) load_rows(first);
      const float sum = GroupSums(tile, w, count, own_count > 0, warp, lane);
      if (lane < kRowsPerWarp * kGroup) {
        const int n = first + lane / kGroup, token = lane % kGroup;
        if (token < count && n < s.num_mixes) out[token * out_stride + n] = sum;
      } else if (lane == kRowsPerWarp * kGroup && warp < count && first < kDotsWarps * kRowsPerWarp) {
        out[warp * out_stride + s.num_mixes] = sum;
      }
    }
    __syncthreads();  // before `tile` and `mixes` are written again
  }
}

inline bool Aligned(const void* p, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

// Runs both kernels for all tokens, in parts if the scratch memory requires it.
void RunSite(const ExecContext& ctx, Site site);

}  // namespace dsv4::hc
