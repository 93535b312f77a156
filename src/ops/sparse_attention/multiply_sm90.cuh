// Parts of sparse_attention_sm90.cu: the work of the two multiplying warpgroups.
#pragma once

#include "ops/sparse_attention/gather_sm90.cuh"

namespace dsv4::attend {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Loads queries, by 256 threads, in FP16, as [heads, 64 channels] blocks with the 128-byte swizzle.
template <int kHeads, int kUnroll>
__device__ __forceinline__ void LoadQueries(const Params& a, int64_t t, int head0, uint32_t base, int tid) {
  const float* q = a.q + (t * a.num_heads + head0) * kDim;
#pragma unroll kUnroll
  for (int j = 0; j < kHeads * kDim / 8 / kConsumers; ++j) {
    const int i = tid + j * kConsumers, head = i / (kDim / 8), c = i % (kDim / 8);
    const float4 x = *reinterpret_cast<const float4*>(q + head * kDim + c * 8),
                 y = *reinterpret_cast<const float4*>(q + head * kDim + c * 8 + 4);
    StoreShared16(base + static_cast<uint32_t>(Shared<kHeads>::kQ + c / 8 * (kHeads * 128) + head * 128 +
                                               ((c % 8) ^ (head % 8)) * 16),
                  PackF16(x.x, x.y), PackF16(x.z, x.w), PackF16(y.x, y.y), PackF16(y.z, y.w));
  }
  FenceAsyncShared();
}

// Starts S^T of one tile for the heads of one warpgroup; does not wait.
template <int kHeads>
__device__ __forceinline__ void IssueScores(float* s, uint32_t rows, uint64_t queries) {
  asm volatile("" : "+l"(queries));  // keeps the compiler from holding 32 descriptors across tiles
  const uint64_t k_rows = sm90::SwizzledRows(rows);
  sm90::WgmmaFence();
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    Product<kHeads / 2>::template Run<0>(s, k_rows + k / 4 * (kBlockBytes / 16) + k % 4 * 2,
                                         queries + k / 4 * (kHeads * 128 / 16) + k % 4 * 2, k > 0);
  }
  sm90::WgmmaCommit();
}

// P is stored in FP16 as [heads, 64 rows], K-major: row r of head h in chunk r / 8 ^ h % 8. Stores four 8 x 8 blocks of
// FP16 in mma's layout, each transposed, to the rows whose addresses lanes 8 m .. 8 m + 7 hold for block m.
__device__ __forceinline__ void StoreTransposed(uint32_t to, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x), "r"(y),
               "r"(z), "r"(w)
               : "memory");
}
__device__ __forceinline__ void StoreTransposed(uint32_t to, uint32_t x, uint32_t y) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(x), "r"(y) : "memory");
}

// Writes O^T [512, heads] times a factor per head to memory. total[block][4 b + 2 r + i]: channel 16 warp + lane / 4 +
// 8 r of 64-channel block 4 wg + block, head 8 b + 2 quad + i.
template <int kHeads>
__device__ __forceinline__ void StoreOutput(const Params& a, int64_t t, int head0, const float (&total)[4][kHeads / 2],
                                            const float* factor, int wg, int warp, int lane) {
  float* out = a.out + (t * a.num_heads + head0) * kDim + wg * 256 + warp * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < kHeads / 2; ++i) {
    const int head = i / 4 * 8 + 2 * (lane % 4) + i % 2;
    const float f = factor[head];
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      float y = total[block][i] * f;
      if (block == 3 && wg == 1 && a.cos_sin != nullptr) {
        const float other = __shfl_xor_sync(0xFFFFFFFFu, y, 4);
        y = RotatedBack(y, other, a.cos_sin[t * kPairs + warp * 8 + lane / 8 + i / 2 % 2 * 4], lane / 4 % 2 == 1);
      }
      out[head * kDim + block * 64 + i / 2 % 2 * 8] = y;
    }
  }
}

// Weights are 2^(score - reference). FP16 holds them from 2^-24 to 2^16, so the reference is below the largest score.
constexpr float kTileBias = 14;  // a tile's own maximum gets the weight 2^14

// Stores a warp's weights, transposed.
template <int kOwn>
__device__ __forceinline__ void StoreWeights(uint32_t to, const uint32_t (&pairs)[kOwn / 8][2]) {
  if constexpr (kOwn == 8) {
    StoreTransposed(to, pairs[0][0], pairs[0][1]);
  } else {
#pragma unroll
    for (int b = 0; b < kOwn / 8; b += 2)
      StoreTransposed(to + b * 1024, pairs[b][0], pairs[b][1], pairs[b + 1][0], pairs[b + 1][1]);
  }
}

// Starts O^T of one tile's rows and all heads for a warpgroup's four blocks of 64 channels; does not wait.
template <int kHeads>
__device__ __forceinline__ void IssueValues(float (&o)[4][kHeads / 2], uint32_t rows, uint64_t weights, int wg) {
  sm90::WgmmaFence();
#pragma unroll
  for (int block = 0; block < 4; ++block) {
    const uint64_t v_rows = sm90::SwizzledRows(rows + static_cast<uint32_t>(wg * 4 + block) * kBlockBytes);
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k)
      Product<kHeads>::template Run<1>(o[block], v_rows + k * (2048 / 16), weights + k * 2, k > 0);
  }
  sm90::WgmmaCommit();
}

// Writes one tile's O^T to memory: o[block][4 b + 2 r + i] is channel 16 warp + lane / 4 + 8 r of 64-channel block 4 wg
// + block, head 8 b + 2 quad + i.
template <int kHeads>
__device__ __forceinline__ void StorePartial(float* to, const float (&o)[4][kHeads / 2], int quad) {
#pragma unroll
  for (int i = 0; i < kHeads / 2; ++i) {
#pragma unroll
    for (int block = 0; block < 4; ++block)
      to[(i / 4 * 8 + 2 * quad + i % 2) * kDim + block * 64 + i / 2 % 2 * 8] = o[block][i];
  }
}

// Adds a tile's O^T to the earlier tiles' sum; `factors`: per head, the factors of both.
template <int kHeads>
__device__ __forceinline__ void MergeTile(float (&total)[4][kHeads / 2], const float (&o)[4][kHeads / 2],
                                          const float2* factors, int quad) {
#pragma unroll
  for (int b = 0; b < kHeads / 8; ++b) {
    const float4 f = *reinterpret_cast<const float4*>(factors + 8 * b + 2 * quad);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 of_head = i % 2 == 0 ? make_float2(f.x, f.y) : make_float2(f.z, f.w);
#pragma unroll
      for (int block = 0; block < 4; ++block)
        total[block][4 * b + i] = Merge(total[block][4 * b + i], o[block][4 * b + i], of_head);
    }
  }
}

// A head's largest score in the tile minus the bias.
template <int kOwn>
__device__ __forceinline__ float TileReference(const float* warp_max, int head) {
  return fmaxf(fmaxf(warp_max[head], warp_max[kOwn + head]),
               fmaxf(warp_max[2 * kOwn + head], warp_max[3 * kOwn + head])) -
         kTileBias;
}

// The largest scores of heads 8 b + 2 quad and 8 b + 2 quad + 1 over the warps' rows.
template <int kOwn>
__device__ __forceinline__ float2 TileMaxima(const float* warp_max, int b, int quad) {
  float2 m = *reinterpret_cast<const float2*>(warp_max + 8 * b + 2 * quad);
#pragma unroll
  for (int w = 1; w < 4; ++w) {
    const float2 other = *reinterpret_cast<const float2*>(warp_max + w * kOwn + 8 * b + 2 * quad);
    m = make_float2(fmaxf(m.x, other.x), fmaxf(m.y, other.y));
  }
  return m;
}

// The work of a warpgroup; `wg` is 0 or 1, `tid` counts within both.
template <int kHeads>
__device__ __forceinline__ void Multiply(const Params& a, int64_t t, int head0, bool split, int first, int step,
                                         int num_tiles, uint8_t* smem, uint32_t base, int tid) {
  using S = Shared<kHeads>;
  constexpr int kOwn = kHeads / 2;  // heads whose scores this warpgroup computes
  constexpr bool kSplits = kHeads == 16;
  // From lane 0, so that the compiler knows that it is uniform, as operand descriptors must be.
  const int wg = __shfl_sync(0xFFFFFFFFu, tid / 128, 0), lane = tid % 32, warp = tid / 32 % 4, quad = lane % 4;
  const uint32_t full = base + S::kBarriers, empty = full + 16;

  LoadQueries<kHeads, 8>(a, t, head0, base, tid);
  sm90::NamedBarrier(3, kConsumers);
  const uint64_t q_rows = sm90::SwizzledRows(base + S::kQ + static_cast<uint32_t>(wg) * kOwn * 128);
  float total[4][kHeads / 2];
#pragma unroll
  for (int b = 0; b < 4; ++b) {
#pragma unroll
    for (int i = 0; i < kHeads / 2; ++i) total[b][i] = 0;
  }
  // Threads 0 .. kOwn - 1 of a warpgroup keep the running maximum and sum of one head each.
  const int mine = tid % 128;
  float largest = -INFINITY, sum = 0;

  float s[kOwn / 2];
  WaitFor(full, 0);
  IssueScores<kHeads>(s, base + S::kTiles, q_rows);
  sm90::WgmmaWait<0>();
  int n = 0;
  for (int tile = first; tile < num_tiles; tile += step, ++n) {
    const int buffer = n & 1;
    const uint32_t rows = base + S::kTiles + static_cast<uint32_t>(buffer) * kTileBytes;
    const bool valid0 = smem[S::kValid + buffer * kTile + warp * 16 + lane / 4],
               valid1 = smem[S::kValid + buffer * kTile + warp * 16 + lane / 4 + 8];

    // s[4 b + 2 r + i]: row 16 warp + lane / 4 + 8 r, head 8 b + 2 quad + i. Maxima and sums over rows: lanes, then
    // warps.
    float* warp_max = reinterpret_cast<float*>(smem + S::kMax) + wg * 4 * kOwn;
    float* warp_sum = reinterpret_cast<float*>(smem + S::kSum) + wg * 4 * kOwn;
#pragma unroll
    for (int b = 0; b < kOwn / 8; ++b) {
      float m[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& top = s[4 * b + i];
        float& bottom = s[4 * b + 2 + i];
        top = valid0 ? top * a.scale_log2 : -INFINITY;
        bottom = valid1 ? bottom * a.scale_log2 : -INFINITY;
        m[i] = fmaxf(top, bottom);
#pragma unroll
        for (int o = 4; o < 32; o *= 2) m[i] = fmaxf(m[i], __shfl_xor_sync(0xFFFFFFFFu, m[i], o));
      }
      if (lane < 4) *reinterpret_cast<float2*>(warp_max + warp * kOwn + 8 * b + 2 * lane) = make_float2(m[0], m[1]);
    }
    sm90::NamedBarrier(1 + wg, 128);
    // Lane 8 m + h holds the address of head 8 (m / 2) + h's chunk of rows 16 warp + 8 (m % 2) ...
    const uint32_t p_to = base + static_cast<uint32_t>(S::kP + buffer * (kHeads * 128) + wg * (kOwn * 128) +
                                                       (lane / 16 * 8 + lane % 8) * 128 +
                                                       ((2 * warp + lane / 8 % 2) ^ (lane % 8)) * 16);
    uint32_t pairs[kOwn / 8][2];  // of head block b: rows lane / 4, lane / 4 + 8
#pragma unroll
    for (int b = 0; b < kOwn / 8; ++b) {
      const float2 m = TileMaxima<kOwn>(warp_max, b, quad);
      float of_warp[2], p0[2], p1[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float largest = i == 0 ? m.x : m.y, reference = largest == -INFINITY ? 0.0f : largest - kTileBias;
        p0[i] = Exp2(s[4 * b + i] - reference), p1[i] = Exp2(s[4 * b + 2 + i] - reference);
        of_warp[i] = p0[i] + p1[i];
#pragma unroll
        for (int o = 4; o < 32; o *= 2) of_warp[i] += __shfl_xor_sync(0xFFFFFFFFu, of_warp[i], o);
      }
      pairs[b][0] = PackF16(p0[0], p0[1]);
      pairs[b][1] = PackF16(p1[0], p1[1]);
      if (lane < 4)
        *reinterpret_cast<float2*>(warp_sum + warp * kOwn + 8 * b + 2 * lane) = make_float2(of_warp[0], of_warp[1]);
    }
    StoreWeights<kOwn>(p_to, pairs);
    float2* factors = reinterpret_cast<float2*>(smem + S::kFactors) + buffer * kHeads;
    float of_tile = 0;
    float2 mine_factors;
    if (mine < kOwn) {
      of_tile = TileReference<kOwn>(warp_max, mine);
      mine_factors = MergeFactors(largest, of_tile);
      factors[wg * kOwn + mine] = mine_factors;
    }
    FenceAsyncShared();
    sm90::NamedBarrier(3, kConsumers);
    if (mine < kOwn) {
      const float sum_of_tile = (warp_sum[mine] + warp_sum[kOwn + mine]) +
                                (warp_sum[2 * kOwn + mine] + warp_sum[3 * kOwn + mine]);
      sum = Merge(sum, sum_of_tile, mine_factors);
      if (kSplits && split)
        a.partial_ml[(t * a.slots + tile) * a.num_heads + head0 + wg * kOwn + mine] = make_float2(of_tile, sum_of_tile);
    }

    uint64_t p = sm90::SwizzledRows(base + S::kP + static_cast<uint32_t>(buffer) * (kHeads * 128));
    float o[4][kHeads / 2];
    IssueValues<kHeads>(o, rows, p, wg);
    if (tile + step < num_tiles) {  // the next scores run while these sums are merged
      WaitFor(full + 8 * (buffer ^ 1), (n + 1) / 2 & 1);
      IssueScores<kHeads>(s, base + S::kTiles + static_cast<uint32_t>(buffer ^ 1) * kTileBytes, q_rows);
      sm90::WgmmaWait<1>();
      BarrierArrive(empty + 8 * buffer);
    } else {
      sm90::WgmmaWait<0>();
    }
    // o[block][4 b + 2 r + i]: channel 16 warp + lane / 4 + 8 r of 64-channel block 4 wg + block, head 8 b + 2 quad +
    // i.
    if (kSplits && split) {
      float* to = a.partial + ((t * a.slots + tile) * a.num_heads + head0) * kDim + wg * 256 + warp * 16 + lane / 4;
      StorePartial<kHeads>(to, o, quad);
    } else {
      MergeTile<kHeads>(total, o, factors, quad);
    }
    sm90::WgmmaWait<0>();
  }
  if (kSplits && split) return;

  float* factor = reinterpret_cast<float*>(smem + S::kFactors + (n & 1) * kHeads * 8);
  if (mine < kOwn) factor[wg * kOwn + mine] = OutputFactor(largest, sum, a.sink[head0 + wg * kOwn + mine]);
  sm90::NamedBarrier(3, kConsumers);
  StoreOutput<kHeads>(a, t, head0, total, factor, wg, warp, lane);
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace dsv4::attend
