// DotsKernel (site.cuh) for many tokens, on tensor cores: streams = post * y + comb * streams, and the products of the streams
// with the 24 rows of fn. Both factors are split into two TF32 numbers each and three of the four products are added, which
// keeps about 22 bits; bits differ from DotsKernel's.
#pragma once

#include "ops/hc_pre/site.cuh"

namespace dsv4::hc {

constexpr int kPrefillThreads = 256, kPrefillWarps = kPrefillThreads / 32;
constexpr int kPrefillColumns = 32 * kPrefillWarps;  // columns of a block: D is a multiple
constexpr int kTokenTile = 16;
constexpr int kPrefillMixes = 24, kSums = kPrefillMixes + 1;
constexpr int kMixFloats = 4 + 4 * 4;

struct PrefillShared {
  float4 fn[kPrefillWarps][3][4][2][32];  // by warp, eight rows, stream, half, lane: columns 16 half + 4 c .. + 3 of row g
  float sums[2][kPrefillWarps][kTokenTile][kSums];
  float mixes[2][kTokenTile][kMixFloats];  // post and comb of the site before
};

__device__ __forceinline__ uint32_t ToTf32(float x) {
  uint32_t y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ void MmaTf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void CopyAsync(void* to, const void* from) {
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from));
}

// grid (D / 256, token groups). A warp has 32 columns of every stream and tiles of 16 tokens. Memory is read and written by
// lanes 8 a + q, tokens 4 r + a, columns 4 q .. 4 q + 3: whole lines. For the products lane 4 g + c has rows g and g + 8 of the
// tile and columns 4 c and 16 + 4 c: lanes 4 apart exchange half of what they have. An m16n8k8 takes two of four columns: k
// slots c and c + 4.
template <typename Weight, bool kPost>
__global__ void __launch_bounds__(kPrefillThreads, 1) PrefillDotsKernel(const Site s, int tokens_per_group) {
  extern __shared__ __align__(16) uint8_t memory[];
  PrefillShared& shared = *reinterpret_cast<PrefillShared*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, a = lane / 8, q = lane % 8, g = lane / 4,
            c = lane % 4;
  const int warp_column = static_cast<int>(blockIdx.x) * kPrefillColumns + warp * 32,
            column = warp_column + 4 * q;
  const int64_t k_row = 4 * static_cast<int64_t>(s.d);
#pragma unroll
  for (int n = 0; n < 3; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Four w = LoadFour(static_cast<const Weight*>(s.fn) + (8 * n + g) * k_row +
                                    static_cast<int64_t>(j) * s.d + warp_column + 16 * half + 4 * c,
                                4, true);
        shared.fn[warp][n][j][half][lane] = make_float4(w.v[0], w.v[1], w.v[2], w.v[3]);
      }
    }
  }
  AllowNext();
  WaitForPrevious();
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * tokens_per_group,
                end = min(begin + tokens_per_group, s.num_tokens);
  if (begin >= end) return;

  const auto load_mixes = [&](int64_t t0, int buffer) {
    if constexpr (kPost) {
      const int token = static_cast<int>(threadIdx.x) / 5, part = static_cast<int>(threadIdx.x) % 5;
      if (token < kTokenTile && t0 + token < end) {
        CopyAsync(&shared.mixes[buffer][token][4 * part],
                  part == 0 ? s.post_in + (t0 + token) * 4 : s.comb_in + (t0 + token) * 16 + 4 * (part - 1));
      }
    }
  };
  Four y[4], x[4][4];
  const auto load = [&](int64_t t0) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int64_t t = t0 + 4 * r + a;
      const int count = t < end ? 4 : 0;
      if constexpr (kPost) y[r] = LoadFour(s.y + t * s.d + column, count, true);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        x[r][j] = LoadFour(s.streams + t * k_row + static_cast<int64_t>(j) * s.d + column, count, true);
    }
  };
  load_mixes(begin, 0);
  load(begin);
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();

  const bool odd = g % 2;
  const int token_low = odd ? 8 + a : a;  // of row g; row g + 8: 4 more
  const int np = s.padded_mixes();
  int buffer = 0;
  for (int64_t t0 = begin; t0 < end; t0 += kTokenTile, buffer ^= 1) {
    Four now[4][4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if constexpr (kPost) {
        const int64_t t = t0 + 4 * r + a;
        const float* mixes = shared.mixes[buffer][4 * r + a];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float post = mixes[k], comb0 = mixes[4 + k], comb1 = mixes[8 + k], comb2 = mixes[12 + k],
                      comb3 = mixes[16 + k];
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            now[r][k].v[e] = fmaf(
                comb3, x[r][3].v[e],
                fmaf(comb2, x[r][2].v[e],
                     fmaf(comb1, x[r][1].v[e], fmaf(comb0, x[r][0].v[e], __fmul_rn(post, y[r].v[e])))));
          }
          if (t < end) {
            StoreFour(s.streams + t * k_row + static_cast<int64_t>(k) * s.d + column, now[r][k], 4, true);
          } else {
            now[r][k] = {0, 0, 0, 0};
          }
        }
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) now[r][k] = x[r][k];
      }
    }
    if (t0 + kTokenTile < end) {
      load(t0 + kTokenTile);
      load_mixes(t0 + kTokenTile, buffer ^ 1);
    }

    float acc[3][4] = {}, square[2] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      Four rows[2][2];  // [half][row g, row g + 8]
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float kept = odd ? now[2 + r][j].v[e] : now[r][j].v[e],
                      sent = odd ? now[r][j].v[e] : now[2 + r][j].v[e];
          const float got = __shfl_xor_sync(0xFFFFFFFFu, sent, 4);
          rows[0][r].v[e] = odd ? got : kept;
          rows[1][r].v[e] = odd ? kept : got;
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float4 w[3];
#pragma unroll
        for (int n = 0; n < 3; ++n) w[n] = shared.fn[warp][n][j][half][lane];
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          const float values[4] = {rows[half][0].v[2 * pair], rows[half][1].v[2 * pair],
                                   rows[half][0].v[2 * pair + 1], rows[half][1].v[2 * pair + 1]};
          uint32_t high[4], low[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            high[i] = ToTf32(values[i]);
            low[i] = __float_as_uint(values[i] - __uint_as_float(high[i]));
            square[i % 2] = fmaf(values[i], values[i], square[i % 2]);
          }
          uint32_t high_w[3][2], low_w[3][2];
#pragma unroll
          for (int n = 0; n < 3; ++n) {
            const float b[2] = {pair ? w[n].z : w[n].x, pair ? w[n].w : w[n].y};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              high_w[n][i] = ToTf32(b[i]);
              low_w[n][i] = __float_as_uint(b[i] - __uint_as_float(high_w[n][i]));
            }
          }
#pragma unroll
          for (int n = 0; n < 3; ++n) MmaTf32(acc[n], low, high_w[n][0], high_w[n][1]);
#pragma unroll
          for (int n = 0; n < 3; ++n) MmaTf32(acc[n], high, low_w[n][0], low_w[n][1]);
#pragma unroll
          for (int n = 0; n < 3; ++n) MmaTf32(acc[n], high, high_w[n][0], high_w[n][1]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      square[r] += __shfl_xor_sync(0xFFFFFFFFu, square[r], 1);
      square[r] += __shfl_xor_sync(0xFFFFFFFFu, square[r], 2);
      float* sums = shared.sums[buffer][warp][token_low + 4 * r];
#pragma unroll
      for (int n = 0; n < 3; ++n) {
        sums[8 * n + 2 * c] = acc[n][2 * r];
        sums[8 * n + 2 * c + 1] = acc[n][2 * r + 1];
      }
      if (c == 0) sums[kPrefillMixes] = square[r];
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    for (int i = threadIdx.x; i < kTokenTile * 32; i += kPrefillThreads) {
      const int token = i / 32, n = i % 32;
      if (n >= kSums || t0 + token >= end) continue;
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kPrefillWarps; ++w) sum += shared.sums[buffer][w][token][n];
      s.partial[((t0 + token) * s.blocks() + blockIdx.x) * np + n] = sum;
    }
  }
}

}  // namespace dsv4::hc
