// Writes the sums of a warpgroup's 64 rows of LinearKernel (wgmma_linear_sm90.cu) as FP16 numbers: 128 tokens at a time
// through the warpgroup's half of the staging memory. From there bulk copies write whole blocks of 8 tokens.
#pragma once

#include "ops/gemm_sm90.cuh"

namespace dsv4::sm90 {

// Writes one block column of the next product's activations.
template <int kN>
__device__ __forceinline__ void StoreBlocksOfSums(const GemmShared& s, const float (&acc)[kN / 2],
                                                  const float (&scale)[2], uint8_t* out, int blocks, bool last) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32 % 4,
                 warpgroup = threadIdx.x / 128 - 1;
  const bool leads = threadIdx.x % 128 == 0, odd = g % 2 != 0;
  const uint32_t staging = s.staging + warpgroup * (kStagingBytes / 2);
  // Lanes g and g ^ 1 have neighbouring columns: each takes one of the two tokens.
  const uint32_t row = 2 * t + g % 2;
#pragma unroll
  for (int round = 0; round < kN / 128; ++round) {
    if (leads) BulkWaitRead<0>();  // the previous contents have left
    NamedBarrier(4 + static_cast<int>(warpgroup), 128);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* v = acc + 4 * (16 * round + j) + 2 * half;
        const uint32_t own = PackInputs<true>(v[0] * scale[half], v[1] * scale[half]);
        const uint32_t other = __shfl_xor_sync(~0u, own, 4);
        const uint32_t pair = odd ? __byte_perm(other, own, 0x7632) : __byte_perm(own, other, 0x5410);
        const uint32_t chunk = (2 * (2 * static_cast<uint32_t>(half) + g / 4) + g % 4 / 2) ^ row;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(staging + static_cast<uint32_t>(j) * 1024 + row * 128 +
                                                     chunk * 16 + warp * 4),
                     "r"(pair)
                     : "memory");
      }
    }
    FenceAsyncShared();
    NamedBarrier(4 + static_cast<int>(warpgroup), 128);
    const int count = min(blocks - 16 * round, 16);
    if (leads && count > 0) BulkStore(out + 16 * round * 1024, staging, static_cast<uint32_t>(count) * 1024);
    if (leads) BulkCommit();
  }
  if (last && leads) BulkWait();
}

// Stores 8 x 8 blocks of sixteen tokens, two row halves each, in mma's layout, transposed: to the rows whose addresses
// lanes 8 m .. 8 m + 7 hold for block m.
__device__ __forceinline__ void StoreTransposed(uint32_t to, const uint32_t (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]),
               "r"(v[2]), "r"(v[3])
               : "memory");
}
__device__ __forceinline__ void LoadMatrices(uint32_t from, uint32_t (&v)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void MultiplyHalves(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A block column of queries (ops/query_blocks.h).
struct QueryColumn {
  uint8_t* blocks;        // of the tile's first token
  float* squares;         // of the tile's first token
  int squares_stride;     // per token
  const float2* cos_sin;  // of the tile's first token, 32 per token; null: RoPE does not turn these channels
  int num_tokens;         // of the tile, at most its width; 0 or less: no token exists
};

// Stages 128 tokens of channels that RoPE turns. Lanes g and g ^ 1 have a pair: each processes one of the two tokens,
// `token`.
__device__ __forceinline__ void StageTurned(const float* acc, const float (&scale)[2], const float2 (&angles)[2][16],
                                            uint32_t staging, uint32_t token, uint32_t g, uint32_t warp) {
  const bool odd = g % 2 != 0;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* x = acc + 4 * j + 2 * half;
      const float first = x[0] * scale[half], second = x[1] * scale[half];
      const float got = __shfl_xor_sync(~0u, odd ? first : second, 4), a = odd ? got : first, b = odd ? second : got;
      const float2 cs = angles[half][j];
      const uint32_t pair = PackInputs<true>(__fsub_rn(__fmul_rn(a, cs.x), __fmul_rn(b, cs.y)),
                                             __fadd_rn(__fmul_rn(a, cs.y), __fmul_rn(b, cs.x)));
      const uint32_t chunk = (2 * warp + static_cast<uint32_t>(half)) ^ token;
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(staging + static_cast<uint32_t>(j) * 1024 + token * 128 +
                                                   chunk * 16 + g / 2 * 4),
                   "r"(pair)
                   : "memory");
    }
  }
}

// X X^T of 16 tokens' channels: low for tokens 0 to 7 (rows and columns), high for 8 to 15. `blocks`: the first of
// their two blocks in shared memory.
__device__ __forceinline__ void MultiplySelf(uint32_t blocks, uint32_t lane, float (&low)[4], float (&high)[4]) {
#pragma unroll
  for (uint32_t k = 0; k < 4; ++k) {
    uint32_t x[4];
    LoadMatrices(blocks + lane / 8 % 2 * 1024 + lane % 8 * 128 + (((2 * k + lane / 16) ^ (lane % 8)) * 16), x);
    MultiplyHalves(low, x, x[0], x[2]);
    MultiplyHalves(high, x, x[1], x[3]);
  }
}

// Stages 128 tokens of channels that RoPE does not turn, to `to`, transposed.
__device__ __forceinline__ void StagePlain(const float* acc, const float (&scale)[2], uint32_t to) {
#pragma unroll
  for (int j = 0; j < 16; j += 2) {
    uint32_t v[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const float* x = acc + 4 * (j + m / 2) + 2 * (m % 2);
      v[m] = PackInputs<true>(x[0] * scale[m % 2], x[1] * scale[m % 2]);
    }
    StoreTransposed(to + static_cast<uint32_t>(j) * 1024, v);
  }
}

// For channels that RoPE turns: a lane has the pairs of 16 tokens, and requests each angle before the numbers are
// needed.
template <int kN>
__device__ __forceinline__ void StoreQueries(const GemmShared& s, const float (&acc)[kN / 2], const float (&scale)[2],
                                             const QueryColumn& to, bool last) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32 % 4,
                 warpgroup = threadIdx.x / 128 - 1;
  const bool leads = threadIdx.x % 128 == 0, odd = g % 2 != 0;
  const uint32_t staging = s.staging + warpgroup * (kStagingBytes / 2);
  // Lanes 8 m .. 8 m + 7 hold the addresses of the tokens of matrix m: of block m / 2, channels 16 warp + 8 (m % 2) ..
  const uint32_t store_to = staging + lane / 16 * 1024 + lane % 8 * 128 +
                            (((2 * warp + lane / 8 % 2) ^ (lane % 8)) * 16);
  // if RoPE turns them, lanes g and g ^ 1 have a pair: each processes one of the two tokens
  const uint32_t token_of_lane = 2 * t + g % 2;
#pragma unroll
  for (int round = 0; round < kN / 128; ++round) {
    if (leads) BulkWaitRead<0>();  // the previous contents have left
    if (to.cos_sin == nullptr) {
      NamedBarrier(4 + static_cast<int>(warpgroup), 128);
      StagePlain(acc + 64 * round, scale, store_to);
    } else {
      float2 angles[2][16];
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const int token = min(8 * (16 * round + j) + static_cast<int>(token_of_lane), to.num_tokens - 1);
        const float2* from = to.cos_sin + static_cast<int64_t>(token) * 32 + 8 * warp + g / 2;
        angles[0][j] = __ldg(from), angles[1][j] = __ldg(from + 4);
      }
      NamedBarrier(4 + static_cast<int>(warpgroup), 128);
      StageTurned(acc + 64 * round, scale, angles, staging, token_of_lane, g, warp);
    }
    FenceAsyncShared();
    NamedBarrier(4 + static_cast<int>(warpgroup), 128);
    const int blocks = min((to.num_tokens + 7) / 8 - 16 * round, 16);
    if (leads && blocks > 0) BulkStore(to.blocks + 16 * round * 1024, staging, static_cast<uint32_t>(blocks) * 1024);
    if (leads) BulkCommit();
      // Sums of squares: the diagonals of X X^T, 16 tokens at a time. The lane with 2 (lane % 4) or 2 (lane % 4) + 1 =
      // lane / 4 has both of its tokens' sums.
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      float low[4] = {}, high[4] = {};
      MultiplySelf(staging + (4 * warp + 2 * i) * 1024, lane, low, high);
      const int token = static_cast<int>(128 * static_cast<uint32_t>(round) + 32 * warp + 16 * i + g);
      if (t != g / 2) continue;
      if (token < to.num_tokens) to.squares[static_cast<int64_t>(token) * to.squares_stride] = odd ? low[1] : low[0];
      if (token + 8 < to.num_tokens)
        to.squares[static_cast<int64_t>(token + 8) * to.squares_stride] = odd ? high[3] : high[2];
    }
  }
  if (last && leads) BulkWait();
}

}  // namespace dsv4::sm90
