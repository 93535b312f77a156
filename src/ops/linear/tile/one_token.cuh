// Parts of kernels that multiply packed weights with one token, or with up to kFewTokens: x as fragments, its norm, a
// warp's tiles. Values and orders are as in tile_linear.cuh, without the code that only more tokens need, because a
// decode step of one sequence is limited by issue slots and by code fetches. Columns 2 i and 2 i + 1 of the product are
// the two terms of token i; x is stored as [tile][token][kOneTokenTile].
#pragma once

#include "ops/linear/tile/tile_linear.cuh"

namespace dsv4::tile_linear {

constexpr int kOneTokenTile = 256;  // bytes of a token's x per tile

// Whether x and the norm's weights can be loaded eight numbers at a time.
inline bool OneTokenLoads(const Params& p) {
  return p.cols % 8 == 0 && (reinterpret_cast<uintptr_t>(p.x) | reinterpret_cast<uintptr_t>(p.norm)) % 16 == 0;
}

// Stores eight numbers as fragments: the columns of a tile that begin `octet` octets after the first.
__device__ __forceinline__ void StoreOctet(uint8_t* tile, int octet, const float4& low, const float4& high) {
  const Bf16Pairs w[4] = {SplitPairs(low.x, low.y), SplitPairs(low.z, low.w), SplitPairs(high.x, high.y),
                          SplitPairs(high.z, high.w)};
  uint4* const out = reinterpret_cast<uint4*>(tile + octet % 2 * 128 + octet % 8 / 2 * 16);
  out[0] = make_uint4(w[0].hi, w[1].hi, w[2].hi, w[3].hi);
  out[4] = make_uint4(w[0].lo, w[1].lo, w[2].lo, w[3].lo);
}

__device__ __forceinline__ void MultiplyOctet(float4& low, float4& high, const float4& a, const float4& b) {
  low.x *= a.x, low.y *= a.y, low.z *= a.z, low.w *= a.w;
  high.x *= b.x, high.y *= b.y, high.z *= b.z, high.w *= b.w;
}

// Stores x, times the norm's weights if there is one, in the form of StageInputs.
__device__ __forceinline__ void StageOneToken(const Params& p, int group, uint8_t* inputs) {
  const float4* const x = reinterpret_cast<const float4*>(p.x + static_cast<int64_t>(group) * p.cols);
  const float4* const norm = reinterpret_cast<const float4*>(p.norm);
  constexpr int kAhead = 2;  // octets whose loads are in flight together
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x); first < 8 * p.tile_cols; first += kAhead * kThreads) {
    float4 v[kAhead][2] = {}, n[kAhead][2] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int octet = first + i * kThreads;
      if (8 * octet >= p.cols) continue;
      v[i][0] = x[2 * octet], v[i][1] = x[2 * octet + 1];
      if (norm != nullptr) n[i][0] = norm[2 * octet], n[i][1] = norm[2 * octet + 1];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int octet = first + i * kThreads;
      if (octet >= 8 * p.tile_cols) break;
      if (norm != nullptr) MultiplyOctet(v[i][0], v[i][1], n[i][0], n[i][1]);
      StoreOctet(inputs + octet / 8 * kOneTokenTile, octet, v[i][0], v[i][1]);
    }
  }
}

// The same for several tokens, at most kTokens.
template <int kTokens, bool kNorm>
__device__ __forceinline__ void StageTokens(const Params& p, int group, uint8_t* inputs) {
  constexpr int kAhead = kNorm ? 2 : 4;  // octets whose loads are in flight together
  const int octets = 8 * p.tile_cols;
  int token = 0, octet = static_cast<int>(threadIdx.x);
#pragma unroll 1
  while (true) {
    float4 v[kAhead][2] = {}, n[kAhead][2] = {};
    int to[kAhead];  // tile and octet of a tile: 8 tile + octet; -1 after the last token
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      while (octet >= octets && token < p.num_tokens) octet -= octets, ++token;
      to[i] = token < p.num_tokens ? (octet / 8 * kTokens + token) * 8 + octet % 8 : -1;
      const int at = 8 * octet;
      octet += kThreads;
      if (to[i] < 0 || at >= p.cols) continue;
      const float4* const x = reinterpret_cast<const float4*>(p.x + token * p.x_stride +
                                                              static_cast<int64_t>(group) * p.cols + at);
      v[i][0] = x[0], v[i][1] = x[1];
      if constexpr (kNorm) {
        const float4* const norm = reinterpret_cast<const float4*>(p.norm + at);
        n[i][0] = norm[0], n[i][1] = norm[1];
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (to[i] < 0) return;
      if constexpr (kNorm) MultiplyOctet(v[i][0], v[i][1], n[i][0], n[i][1]);
      StoreOctet(inputs + to[i] / 8 * kOneTokenTile, to[i], v[i][0], v[i][1]);
    }
  }
}
template <int kTokens>
__device__ __forceinline__ void StageTokens(const Params& p, int group, uint8_t* inputs) {
  if constexpr (kTokens == 1) {
    StageOneToken(p, group, inputs);
  } else if (p.norm != nullptr) {
    StageTokens<kTokens, true>(p, group, inputs);
  } else {
    StageTokens<kTokens, false>(p, group, inputs);
  }
}

// 1 / RMS of a token, as in RowScales; one warp.
__device__ __forceinline__ void ScaleOfToken(const Params& p, int token, float* scale) {
  const float4* const x = reinterpret_cast<const float4*>(p.x + token * p.x_stride);
  float square = 0;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x % 32); i < p.cols / 4; i += 32) {
    const float4 v = x[i];
    square = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, square))));
  }
  square = WarpSum(square);
  if (threadIdx.x % 32 == 0) *scale = rsqrtf(square / static_cast<float>(p.cols) + p.norm_eps);
}

// Call before a copy overwrites a slot. `loaded`: a combination of everything that a lane loaded from the slot (as
// loaded, decoded, or any of its bits). A load whose value is not used yet may still be in flight, and copies do not
// wait for it: neither __syncwarp nor an arrival makes the hardware wait for loads. The vote needs the values; its
// result has no effect.
__device__ __forceinline__ void WaitForLoads(uint32_t loaded) {
  FenceAsyncShared();
  if (__any_sync(0xFFFFFFFFu, loaded == 0x7F4A5C31u)) FenceAsyncShared();
}

// WaitForLoads for the first `count` of these decoded tiles.
template <int N>
__device__ __forceinline__ void WaitForTiles(const uint32_t (&tiles)[N][4][4], int count) {
  uint32_t loaded = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      if (i < count) loaded |= tiles[i][j / 4][j % 4];
    }
  }
  WaitForLoads(loaded);
}

// ScaleOfToken for every token, by the last warps.
template <int kTokens>
__device__ __forceinline__ void ScalesOfTokens(const Params& p, int warp, float* scales) {
  if constexpr (kTokens == 1) {
    if (warp == kWarps - 1) ScaleOfToken(p, 0, scales);
  } else if (const int token = kWarps - 1 - warp; token < p.num_tokens) {
    ScaleOfToken(p, token, scales + token);
  }
}

// The sums of a warp's tiles for up to kTokens tokens. Only the lanes of the tokens' columns load x.
template <WeightFormat F, int kTokens = 1>
class OneTokenTiles {
 public:
  static_assert(kTokens <= kFewTokens);
  static constexpr int kTile = kTokens * kOneTokenTile;  // bytes of x per tile

  __device__ __forceinline__ explicit OneTokenTiles(uint32_t lane)
      : lane_(lane),
        x_lane_(kTokens == 1 ? lane * 16 : lane / 8 * kOneTokenTile + lane % 8 * 16),
        active_(lane < 8 * kTokens) {}

  // Decodes the tile at `tile` in shared memory.
  __device__ __forceinline__ void Decode(uint32_t tile, uint32_t (&a)[4][4]) const {
    DecodeTile<F>(LoadTile<F>(static_cast<const uint8_t*>(__cvta_shared_to_generic(tile)), static_cast<int>(lane_)), a);
  }

  // Multiplies tile `i` of a chunk; the chunk's x begins at `x`. `scale`: for FP8.
  __device__ __forceinline__ void Multiply(const uint32_t (&a)[4][4], uint32_t x, int i, float scale = 0) {
    constexpr bool kScales = HasScalesBeside(F);
    float part[4] = {};
    float(&d)[4] = kScales ? part : sum_[i % 2];
    uint4(&columns)[2] = columns_[i % 2];
    const auto* from = static_cast<const uint4*>(
        __cvta_shared_to_generic(x_lane_ + x + static_cast<uint32_t>(i * kTile)));
    if (active_) columns[0] = from[0], columns[1] = from[8];
    MmaBf16(d, a[0], columns[0].x, columns[0].y);
    MmaBf16(d, a[1], columns[0].z, columns[0].w);
    MmaBf16(d, a[2], columns[1].x, columns[1].y);
    MmaBf16(d, a[3], columns[1].z, columns[1].w);
    if constexpr (kScales) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sum_[i % 2][j] = fmaf(scale, part[j], sum_[i % 2][j]);
    }
  }

  // Returns rows g and g + 8 of token lane % 4 and clears the sums.
  __device__ __forceinline__ float2 Take() {
    const float low = (sum_[0][0] + sum_[1][0]) + (sum_[0][1] + sum_[1][1]);
    const float high = (sum_[0][2] + sum_[1][2]) + (sum_[0][3] + sum_[1][3]);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum_[0][j] = sum_[1][j] = 0;
    return {low, high};
  }

 private:
  uint32_t lane_, x_lane_;
  bool active_;
  uint4 columns_[2][2] = {};  // the values in other lanes only affect unused columns
  float sum_[2][4] = {};      // of even tiles, of odd ones
};

}  // namespace dsv4::tile_linear
