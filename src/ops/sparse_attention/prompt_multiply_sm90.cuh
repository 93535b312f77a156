// The multiplying warps of sparse_attention_prompt_sm90.cu.
#pragma once

#include "ops/sparse_attention/prompt_sm90.cuh"

namespace dsv4::attend {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Masks the rows that the tile does not have: their bit is 0.
__device__ __forceinline__ void MaskScores(float (&s)[16], uint32_t mask) {
  if (__shfl_sync(0xFFFFFFFFu, mask, 0) == 0xFFFFFFFFu) return;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if ((mask >> (i / 4 * 8 + i % 2) & 1) == 0) s[i] = -INFINITY;
  }
}

// o = weights times a tile's rows, plus the old o if `adds`: two groups of wgmma, half of the rows each.
__device__ __forceinline__ void IssueValues(float (&o)[128], uint32_t base, int buffer, int wg, bool adds) {
  using S = PromptShared;
  uint64_t p_rows = sm90::SwizzledRows(base + static_cast<uint32_t>(S::kP + buffer * (kPromptHeads * 128)));
  // N-major: 64 channels of eight rows are 1,024 bytes; the next 64 channels are kBlockBytes further.
  uint64_t v_rows = (sm90::SwizzledRows(base +
                                        static_cast<uint32_t>(S::kTiles + buffer * kTileBytes + wg * 4 * kBlockBytes)) &
                     ~(uint64_t{0x3FFF} << 16)) |
                    uint64_t{kBlockBytes / 16} << 16;
  asm volatile("" : "+l"(p_rows), "+l"(v_rows));
  sm90::WgmmaFence();
#pragma unroll
  for (int k = 0; k < kTile / 16; ++k) {
    ProductHalf(o, p_rows + k * 2, v_rows + k * (2048 / 16), k > 0 || adds);
    ProductHalf(o + 64, p_rows + k * 2, v_rows + k * (2048 / 16) + 2 * kBlockBytes / 16, k > 0 || adds);
    if (k % 2 == 1) sm90::WgmmaCommit();  // half of the rows
  }
}

// Writes the output of 64 heads of a token, each row times f: turned back by RoPE, as float32 or as blocks of FP16.
__device__ __forceinline__ void StorePrompt(const PromptParams& p, const float (&o)[128], const float (&f)[2],
                                            int64_t t, int first_head, int wg, int warp, int lane) {
  const Params& a = p.a;
  const int quad = lane % 4;
  float* out = a.out + (t * a.num_heads + first_head + warp * 16) * kDim + wg * 256;
  const auto pair = [&](int j, int r) {
    float2 y = make_float2(o[4 * j + 2 * r] * f[r], o[4 * j + 2 * r + 1] * f[r]);
    if (j >= 24 && wg == 1 && a.cos_sin != nullptr) {
      const float2 cs = __ldg(a.cos_sin + t * kPairs + (j - 24) * 4 + quad);
      y = make_float2(RotatedBack(y.x, y.y, cs, false), RotatedBack(y.y, y.x, cs, true));
    }
    return y;
  };
  // a lane's pairs 8 b + {0, 2, 4, 6} and 8 b + {1, 3, 5, 7} are 16 bytes of a block each
  if (p.out_blocks != nullptr) {
    const uint32_t row = static_cast<uint32_t>(t) % 8, row_blocks8 = static_cast<uint32_t>(p.num_tokens + 7) / 8;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t block = static_cast<uint32_t>((first_head + warp * 16 + lane / 4 + 8 * r) * (kDim / 64) +
                                                     wg * 4 + b);
        uint4* to = reinterpret_cast<uint4*>(p.out_blocks + sm90::BlockBegin(block, row_blocks8, t / 8) + row * 128);
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          uint32_t packed[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 y = pair(8 * b + 2 * i + odd, r);
            packed[i] = sm90::PackInputs<true>(y.x, y.y);
          }
          to[static_cast<uint32_t>(4 * odd + quad) ^ row] = make_uint4(packed[0], packed[1], packed[2], packed[3]);
        }
      }
    }
  } else {
    const bool odd = lane & 1;
#pragma unroll
    for (int j = 0; j < 32; j += 2) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 x = pair(j, r), y = pair(j + 1, r), send = odd ? x : y;
        const float2 got = make_float2(__shfl_xor_sync(0xFFFFFFFFu, send.x, 1),
                                       __shfl_xor_sync(0xFFFFFFFFu, send.y, 1));
        const float4 z = odd ? make_float4(got.x, got.y, y.x, y.y) : make_float4(x.x, x.y, got.x, got.y);
        __stcs(reinterpret_cast<float4*>(out + (lane / 4 + 8 * r) * kDim + 8 * (j + (odd ? 1 : 0)) + quad / 2 * 4), z);
      }
    }
  }
}

// Writes the weights 2^(score factor - reference) of a warpgroup's rows to shared memory as FP16. Sets of_tile to their
// sums, and returns how far the largest exponent is above 0.
__device__ __forceinline__ float StoreWeights(const float (&s)[16], const float (&factor)[2],
                                              const float (&reference)[2], uint32_t to, float (&of_tile)[2]) {
  uint32_t pairs[2][4];
  float excess = -INFINITY;
  of_tile[0] = of_tile[1] = 0;
#pragma unroll
  for (int i = 0; i < 16; i += 2) {
    const int r = i / 2 % 2;
    const float e0 = __fmaf_rn(s[i], factor[r], -reference[r]), e1 = __fmaf_rn(s[i + 1], factor[r], -reference[r]);
    excess = fmaxf(excess, fmaxf(e0, e1));
    const float p0 = Exp2(e0), p1 = Exp2(e1);
    of_tile[r] += p0 + p1;
    pairs[r][i / 4] = PackF16(p0, p1);
  }
  StoreMatrices(to, pairs[0][0], pairs[0][1], pairs[0][2], pairs[0][3]);
  StoreMatrices(to + 1024, pairs[1][0], pairs[1][1], pairs[1][2], pairs[1][3]);
  FenceAsyncShared();
  return excess;
}

// Writes the largest score of a warpgroup's rows, for rows r of the lane's heads, to shared memory.
__device__ __forceinline__ void StoreMaxima(const float (&s)[16], int quad, float* to) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float m = -INFINITY;
#pragma unroll
    for (int j = 0; j < 4; ++j) m = fmaxf(m, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
    m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, 1));
    m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, 2));
    if (quad == 0) to[8 * r] = m;
  }
}

// Raises the references to the tile's maxima if these are larger; f: the factor for the earlier sums.
__device__ __forceinline__ void RaiseReferences(const float* maxima, const float (&factor)[2], float bias, bool first,
                                                float (&reference)[2], float (&f)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float now = fmaxf(maxima[8 * r], maxima[kPromptHeads + 8 * r]) * factor[r] - bias;
    if (!first) now = fmaxf(now, reference[r]);
    if (now == -INFINITY) now = 0;  // all scores are NaN
    f[r] = Exp2(reference[r] - now);
    reference[r] = now;
  }
}

// The factors of the outputs of the lane's two heads; adds their sums over lanes and warpgroups.
__device__ __forceinline__ void OutputFactors(float (&sum)[2], const float (&reference)[2], const float (&sink)[2],
                                              int wg, int quad, float* sums, float (&f)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] += __shfl_xor_sync(0xFFFFFFFFu, sum[r], 1);
    sum[r] += __shfl_xor_sync(0xFFFFFFFFu, sum[r], 2);
    if (quad == 0) sums[wg * kPromptHeads + 8 * r] = sum[r];
  }
  sm90::NamedBarrier(3, kConsumers);
#pragma unroll
  for (int r = 0; r < 2; ++r) f[r] = OutputFactor(reference[r], sums[8 * r] + sums[kPromptHeads + 8 * r], sink[r]);
}

// Multiplies the sums of the lane's two heads by f.
__device__ __forceinline__ void ScaleSums(float (&sum)[2], float (&o)[128], const float (&f)[2]) {
  sum[0] *= f[0];
  sum[1] *= f[1];
#pragma unroll
  for (int i = 0; i < 128; ++i) o[i] *= f[i / 2 % 2];
}

// A warpgroup scores 32 of a tile's rows for all 64 heads and sums half of the channels. s[4 j + 2 r + i]: head 16 warp
// + lane / 4 + 8 r, row 32 wg + 8 j + 2 quad + i; o is the same with channel 256 wg + 8 j + 2 quad + i. Weights are
// relative to the first tile's maximum. The sums are rescaled only if a score exceeds the headroom.
__device__ __forceinline__ void MultiplyPrompt(const PromptParams& p, uint8_t* smem, uint32_t base, int tid) {
  using S = PromptShared;
  constexpr float kBias = 7;       // the first tile's maximum gets the weight 2^7; scores may grow:
  constexpr float kHeadroom = 15;  // weights stay below 2^15
  const Params& a = p.a;
  const int wg = __shfl_sync(0xFFFFFFFFu, tid / 128, 0), lane = tid % 32, warp = tid / 32 % 4, quad = lane % 4,
            head = warp * 16 + lane / 4;
  const uint32_t groups = static_cast<uint32_t>(a.num_heads) / kPromptHeads;
  const uint32_t full = base + S::kBarriers, empty = full + 32, q_full = full + 64, q_empty = full + 72;
  const uint32_t own_full = full + static_cast<uint32_t>(8 * wg),
                 other_full = full + static_cast<uint32_t>(8 * (wg ^ 1));
  const uint64_t q_rows = sm90::SwizzledRows(base + S::kQ);
  // Lane 8 m + h holds the address of chunk 4 wg + m of head 16 warp + h.
  const uint32_t p_to = base + static_cast<uint32_t>(S::kP + (warp * 16 + lane % 8) * 128 +
                                                     ((4 * wg + lane / 8) ^ (lane % 8)) * 16);
  float* all_max = reinterpret_cast<float*>(smem + S::kMax);
  float* all_sum = reinterpret_cast<float*>(smem + S::kSum);
  int count = 0, num_tiles = 0;
  float s[16];
  const auto scores = [&](int of) {
    IssueHeadScores(s, base + static_cast<uint32_t>(S::kTiles + (of & 1) * kTileBytes + wg * 4096), q_rows);
  };
  const auto first_scores = [&](int item) {
    WaitFor(own_full + 16 * (count & 1), count / 2 & 1);
    num_tiles = reinterpret_cast<const int*>(smem + S::kNumTiles)[item & 3];
    WaitFor(q_full, item & 1);
    FenceAsyncShared();
    scores(count);
  };
  first_scores(0);
#pragma unroll 1
  for (int w = static_cast<int>(blockIdx.x), item = 0; w < p.num_items; w += static_cast<int>(gridDim.x), ++item) {
    const int64_t t = static_cast<uint32_t>(w) / groups;
    const int first_head = static_cast<int>(static_cast<uint32_t>(w) % groups) * kPromptHeads;
    float o[128], sum[2] = {0, 0}, reference[2] = {0, 0};
    float factor[2] = {a.scale_log2, a.scale_log2};
    if (p.q_blocks != nullptr) {
      const float* factors = reinterpret_cast<const float*>(smem + S::kFactors) + (item & 1) * kPromptHeads + head;
      factor[0] = factors[0], factor[1] = factors[8];
    }
    sm90::WgmmaWait<0>();
#pragma unroll 1
    for (int n = 0; n < num_tiles; ++n) {
      const int buffer = count & 1;
      if (n + 1 == num_tiles) BarrierArrive(q_empty);
      MaskScores(s, *reinterpret_cast<const uint32_t*>(smem + S::kMask + buffer * 8 + wg * 4) >> (2 * quad));
      float of_tile[2], excess;
      WaitFor(other_full + 16 * buffer, count / 2 & 1);
      const auto weights = [&] {
        const uint32_t to = p_to + static_cast<uint32_t>(buffer * (kPromptHeads * 128));
        excess = StoreWeights(s, factor, reference, to, of_tile);
      };
      bool rescale = n == 0;
      if (n > 0) {
        weights();
        rescale = sm90::NamedBarrierOr(3, kConsumers, excess > kHeadroom);
      }
      if (rescale) {
        StoreMaxima(s, quad, all_max + wg * kPromptHeads + head);
        sm90::NamedBarrier(3, kConsumers);
        float f[2];
        RaiseReferences(all_max + head, factor, kBias, n == 0, reference, f);
        if (n > 0) ScaleSums(sum, o, f);
        weights();
        sm90::NamedBarrier(3, kConsumers);
      }
      sum[0] += of_tile[0];
      sum[1] += of_tile[1];
      IssueValues(o, base, buffer, wg, n > 0);
      ++count;
      if (n + 1 < num_tiles) {  // queues the next scores, so that the tensor cores do not wait for this thread
        WaitFor(own_full + 16 * (buffer ^ 1), count / 2 & 1);
        FenceAsyncShared();
        scores(count);
        sm90::WgmmaWait<2>();
        BarrierArrive(empty + 16 * buffer);
        sm90::WgmmaWait<1>();
        BarrierArrive(empty + 16 * buffer + 8);
        sm90::WgmmaWait<0>();
      } else {
        sm90::WgmmaWait<0>();
        BarrierArrive(empty + 16 * buffer);
        BarrierArrive(empty + 16 * buffer + 8);
      }
    }
    const float sink[2] = {__ldg(a.sink + first_head + head), __ldg(a.sink + first_head + head + 8)};
    if (w + static_cast<int>(gridDim.x) < p.num_items) first_scores(item + 1);  // they run while the output is written
    float f[2];
    OutputFactors(sum, reference, sink, wg, quad, all_sum + head, f);
    StorePrompt(p, o, f, t, first_head, wg, warp, lane);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace dsv4::attend
