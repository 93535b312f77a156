// DotsKernel (site.cuh) for many tokens, on tensor cores: streams = post * y + comb * streams, and the products of the
// streams with the 24 rows of fn. Both factors are split into two TF32 numbers each, and three of the four products are
// added, which keeps about 22 bits. The bits differ from DotsKernel's.
#pragma once

#include "ops/activation_blocks.cuh"
#include "ops/hc_pre/site_mix.cuh"

namespace dsv4::hc {

constexpr int kPrefillThreads = 256, kPrefillWarps = kPrefillThreads / 32;
constexpr int kPrefillColumns = 32 * kPrefillWarps;  // columns of a block; D is a multiple of them
constexpr int kTokenTile = 16;
constexpr int kPrefillMixes = 24, kSums = kPrefillMixes + 1;
constexpr int kMixFloats = 4 + 4 * 4;

struct PrefillShared {
  // by warp, eight rows, stream, half, lane: columns 16 half + 4 c .. + 3 of row g
  float4 fn[kPrefillWarps][3][4][2][32];
  float sums[2][kPrefillWarps][kTokenTile][kSums];
  float mixes[2][kTokenTile][kMixFloats];  // post and comb of the previous bridge
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
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from));
}

// Stores fn's rows of a warp's columns in the order in which its lanes multiply with them.
template <typename Weight>
__device__ __forceinline__ void KeepWeights(const Site& s, float4 (&fn)[3][4][2][32], int warp_column, int lane) {
  const int g = lane / 4, c = lane % 4;
  const int64_t k_row = 4 * static_cast<int64_t>(s.d);
#pragma unroll
  for (int n = 0; n < 3; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Four w = LoadFour(static_cast<const Weight*>(s.fn) + (8 * n + g) * k_row + static_cast<int64_t>(j) * s.d +
                                    warp_column + 16 * half + 4 * c,
                                4, true);
        fn[n][j][half][lane] = make_float4(w.v[0], w.v[1], w.v[2], w.v[3]);
      }
    }
  }
}

// Four columns of stream k after a bridge: post[k] * y + comb[:, k] * streams; `mixes`: post and comb.
__device__ __forceinline__ Four MixStream(const float* mixes, int k, const Four& y, const Four (&x)[4]) {
  const float post = mixes[k], comb0 = mixes[4 + k], comb1 = mixes[8 + k], comb2 = mixes[12 + k], comb3 = mixes[16 + k];
  Four now;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    now.v[e] = fmaf(comb3, x[3].v[e],
                    fmaf(comb2, x[2].v[e], fmaf(comb1, x[1].v[e], fmaf(comb0, x[0].v[e], __fmul_rn(post, y.v[e])))));
  }
  return now;
}

// Multiplies two columns of rows g and g + 8 with the same columns of fn's 24 rows; adds the two rows' squares to
// `square`.
__device__ __forceinline__ void MultiplyPair(const float (&values)[4], const float4 (&w)[3], int pair,
                                             float (&acc)[3][4], float (&square)[2]) {
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

// A tile's products: `now` is the lane's part of the tile, in the order of memory.
__device__ __forceinline__ void MultiplyTile(const Four (&now)[4][4], const float4 (&fn)[3][4][2][32], int lane,
                                             float (&acc)[3][4], float (&square)[2]) {
  const bool odd = lane / 4 % 2;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    Four rows[2][2];  // [half][row g, row g + 8]
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float kept = odd ? now[2 + r][j].v[e] : now[r][j].v[e], sent = odd ? now[r][j].v[e] : now[2 + r][j].v[e];
        const float got = __shfl_xor_sync(0xFFFFFFFFu, sent, 4);
        rows[0][r].v[e] = odd ? got : kept;
        rows[1][r].v[e] = odd ? kept : got;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float4 w[3];
#pragma unroll
      for (int n = 0; n < 3; ++n) w[n] = fn[n][j][half][lane];
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const float values[4] = {rows[half][0].v[2 * pair], rows[half][1].v[2 * pair], rows[half][0].v[2 * pair + 1],
                                 rows[half][1].v[2 * pair + 1]};
        MultiplyPair(values, w, pair, acc, square);
      }
    }
  }
}

// Stores a warp's products of a tile, and the squares: of tokens `token_low` (the lane's row g) and token_low + 4 (row
// g + 8).
__device__ __forceinline__ void StoreTileSums(const float (&acc)[3][4], const float (&of_lane)[2], int token_low, int c,
                                              float (&sums)[kTokenTile][kSums]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float square = of_lane[r];
    square += __shfl_xor_sync(0xFFFFFFFFu, square, 1);
    square += __shfl_xor_sync(0xFFFFFFFFu, square, 2);
    float* row = sums[token_low + 4 * r];
#pragma unroll
    for (int n = 0; n < 3; ++n) {
      row[8 * n + 2 * c] = acc[n][2 * r];
      row[8 * n + 2 * c + 1] = acc[n][2 * r + 1];
    }
    if (c == 0) row[kPrefillMixes] = square;
  }
}

// Adds the warps' sums of a tile, for the tokens before `end`, and writes them to the block's place.
__device__ __forceinline__ void AddWarps(const Site& s, const float (&sums)[kPrefillWarps][kTokenTile][kSums],
                                         int64_t t0, int64_t end) {
  for (int i = threadIdx.x; i < kTokenTile * 32; i += kPrefillThreads) {
    const int token = i / 32, n = i % 32;
    if (n >= kSums || t0 + token >= end) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kPrefillWarps; ++w) sum += sums[w][token][n];
    s.partial[((t0 + token) * s.blocks() + blockIdx.x) * s.padded_mixes() + n] = sum;
  }
}

// grid (D / 256, token groups). A warp has 32 columns of every stream and tiles of 16 tokens. Lanes 8 a + q read and
// write memory: tokens 4 r + a, columns 4 q .. 4 q + 3, which are whole lines. For the products lane 4 g + c has rows g
// and g + 8 of the tile and columns 4 c and 16 + 4 c, so lanes 4 apart exchange half of their values. An m16n8k8
// multiplies two of four columns: k slots c and c + 4.
template <typename Weight, bool kPost>
__global__ void __launch_bounds__(kPrefillThreads, 1) PrefillDotsKernel(const Site s, int tokens_per_group) {
  extern __shared__ __align__(16) uint8_t memory[];
  PrefillShared& shared = *reinterpret_cast<PrefillShared*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, a = lane / 8, q = lane % 8, g = lane / 4, c = lane % 4;
  const int warp_column = static_cast<int>(blockIdx.x) * kPrefillColumns + warp * 32, column = warp_column + 4 * q;
  const int64_t k_row = 4 * static_cast<int64_t>(s.d);
  KeepWeights<Weight>(s, shared.fn[warp], warp_column, lane);
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
          now[r][k] = MixStream(mixes, k, y[r], x[r]);
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
    MultiplyTile(now, shared.fn[warp], lane, acc, square);
    StoreTileSums(acc, square, token_low, c, shared.sums[buffer][warp]);
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    AddWarps(s, shared.sums[buffer], t0, end);
  }
}

// Computes the mixes of 32 tokens per block: a warp adds the products of four, a lane computes the comb of one. pre
// replaces the first of a token's products.
constexpr int kMixesTokens = 32;
__global__ void __launch_bounds__(256) PrefillMixesKernel(const Site s) {
  __shared__ float logits[kMixesTokens][17];
  AllowNext();
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const MixWeights weights(s, min(lane, kPrefillMixes - 1), 4);
  WaitForPrevious();
  const int np = s.padded_mixes(), blocks = s.blocks();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kMixesTokens;
  float product[4] = {};
#pragma unroll 4
  for (int b = 0; b < blocks; ++b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t t = first + 4 * warp + i;
      if (t < s.num_tokens && lane < kSums) product[i] += s.partial[(t * blocks + b) * np + lane];
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t t = first + 4 * warp + i;
    const float square = __shfl_sync(0xFFFFFFFFu, product[i], kPrefillMixes);
    if (t >= s.num_tokens || lane >= kPrefillMixes) continue;
    const float mix = MixOf(s, weights, lane, 4, product[i], square);
    (lane < 4   ? s.partial[t * blocks * np + lane]
     : lane < 8 ? s.post[t * 4 + lane - 4]
                : logits[4 * warp + i][lane - 8]) = mix;
  }
  __syncthreads();
  if (warp != 0 || first + lane >= s.num_tokens) return;
  float a[4][4];
#pragma unroll
  for (int i = 0; i < 16; ++i) a[i / 4][i % 4] = logits[lane][i];
  SinkhornInRegisters<4>(a, s.iters, s.eps);
  float4* comb = reinterpret_cast<float4*>(s.comb + (first + lane) * 16);
#pragma unroll
  for (int j = 0; j < 4; ++j) comb[j] = make_float4(a[j][0], a[j][1], a[j][2], a[j][3]);
}

// Stores four columns, from i, of token t as activations in blocks. A thread's columns are 4 bytes of each of two
// chunks. Neighbours swap, so that one store fills 32 bytes with eight lanes.
__device__ __forceinline__ void StoreInBlocks(const Site& s, int64_t t, int i, int lane, const float4& x) {
  const int64_t token = s.first_token + t;
  const int r = static_cast<int>(token % 8), chunk = 2 * (lane % 4), odd = lane & 1;
  const uint32_t low = sm90::PackInputs<true>(x.x, x.y), high = sm90::PackInputs<true>(x.z, x.w);
  const uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, odd ? low : high, 1);
  uint8_t* row = s.x_blocks + sm90::BlockBegin(i / 64, s.row_blocks8, token / 8) + r * 128 + lane / 4 % 4 * 4;
  *reinterpret_cast<uint32_t*>(row + ((odd ? chunk - 1 : chunk) ^ r) * 16) = odd ? got : low;
  *reinterpret_cast<uint32_t*>(row + ((odd ? chunk + 1 : chunk + 2) ^ r) * 16) = odd ? high : got;
}

// x = the streams times pre, normed: one block per token; a thread has four columns of every stream, or 4 kGroups.
constexpr int kSumThreads = 1024;
template <int kGroups>
__global__ void __launch_bounds__(kSumThreads, kGroups == 1 ? kMostThreads / kSumThreads : 1)
    PrefillSumKernel(const Site s) {
  __shared__ float squares[kSumThreads / 32];
  AllowNext();
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int64_t t = blockIdx.x;
  const float* streams = s.streams + t * 4 * s.d;
  WaitForPrevious();
  float4 own[kGroups][4], sum[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int i = (g * kSumThreads + static_cast<int>(threadIdx.x)) * 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i < s.d) own[g][j] = __ldcs(reinterpret_cast<const float4*>(streams + static_cast<int64_t>(j) * s.d + i));
    }
  }
  const float4 pre = *reinterpret_cast<const float4*>(s.partial + t * s.blocks() * s.padded_mixes());
  float square = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int i = (g * kSumThreads + static_cast<int>(threadIdx.x)) * 4;
    sum[g] = make_float4(0, 0, 0, 0);
    if (i >= s.d) continue;
    AddScaled(pre.x, own[g][0], sum[g]);
    AddScaled(pre.y, own[g][1], sum[g]);
    AddScaled(pre.z, own[g][2], sum[g]);
    AddScaled(pre.w, own[g][3], sum[g]);
    square += SquareOf(sum[g]);
  }
  float scale = 1;
  if (s.norm_weight != nullptr) {
    square = WarpSum(square);
    if (lane == 0) squares[warp] = square;
    __syncthreads();
    scale = rsqrtf(WarpSum(squares[lane]) / static_cast<float>(s.d) + s.x_norm_eps);
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int i = (g * kSumThreads + static_cast<int>(threadIdx.x)) * 4;
    if (i >= s.d) continue;  // whole warps
    float4 out = sum[g];
    if (s.norm_weight != nullptr) {
      const float4 weight = __ldg(reinterpret_cast<const float4*>(s.norm_weight + i));
      out = make_float4(out.x * scale * weight.x, out.y * scale * weight.y, out.z * scale * weight.z,
                        out.w * scale * weight.w);
    }
    *reinterpret_cast<float4*>(s.x + t * s.d + i) = out;
    if (s.x_blocks != nullptr) StoreInBlocks(s, t, i, lane, out);
  }
}

}  // namespace dsv4::hc
