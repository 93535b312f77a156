// Parts of kernels that multiply packed weights with one token: x as fragments, its norm, a warp's tiles. Numbers and
// orders are those of tile_linear.cuh, without what only more tokens need: a decode step of one sequence waits for
// issue slots and for code.
#pragma once

#include "ops/linear/tile/tile_linear.cuh"

namespace dsv4::tile_linear {

constexpr int kOneTokenTile = 256;  // bytes of x that a tile is multiplied with

// Whether x and the norm's weights can be loaded eight numbers at a time.
inline bool OneTokenLoads(const Params& p) {
  return p.cols % 8 == 0 && (reinterpret_cast<uintptr_t>(p.x) | reinterpret_cast<uintptr_t>(p.norm)) % 16 == 0;
}

// x, times the norm's weights if there is one, as StageInputs has it.
__device__ __forceinline__ void StageOneToken(const Params& p, int group, uint8_t* inputs) {
  const float4* const x = reinterpret_cast<const float4*>(p.x + static_cast<int64_t>(group) * p.cols);
  const float4* const norm = reinterpret_cast<const float4*>(p.norm);
  constexpr int kAhead = 2;  // octets whose loads are on their way together
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
      float4 &low = v[i][0], &high = v[i][1];
      if (norm != nullptr) {
        const float4 &a = n[i][0], &b = n[i][1];
        low.x *= a.x, low.y *= a.y, low.z *= a.z, low.w *= a.w;
        high.x *= b.x, high.y *= b.y, high.z *= b.z, high.w *= b.w;
      }
      const Bf16Pairs w[4] = {SplitPairs(low.x, low.y), SplitPairs(low.z, low.w), SplitPairs(high.x, high.y),
                              SplitPairs(high.z, high.w)};
      uint4* const out = reinterpret_cast<uint4*>(inputs + octet / 8 * 256 + octet % 2 * 128 + octet % 8 / 2 * 16);
      out[0] = make_uint4(w[0].hi, w[1].hi, w[2].hi, w[3].hi);
      out[4] = make_uint4(w[0].lo, w[1].lo, w[2].lo, w[3].lo);
    }
  }
}

// 1 / RMS of x, as RowScales has it; one warp.
__device__ __forceinline__ void ScaleOfOneToken(const Params& p, float* scale) {
  const float4* const x = reinterpret_cast<const float4*>(p.x);
  float square = 0;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x % 32); i < p.cols / 4; i += 32) {
    const float4 v = x[i];
    square = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, square))));
  }
  square = WarpSum(square);
  if (threadIdx.x % 32 == 0) *scale = rsqrtf(square / static_cast<float>(p.cols) + p.norm_eps);
}

// Before a slot is copied to again: `loaded`, everything a lane loaded from it (as it is, decoded, or any of its bits),
// is in registers. A load whose number nothing has used yet may still be on its way, and copies do not wait for it:
// neither __syncwarp nor an arrival makes the hardware wait for what loads bring. The vote needs the numbers; its
// answer changes nothing.
__device__ __forceinline__ void WaitForLoads(uint32_t loaded) {
  FenceAsyncShared();
  if (__any_sync(0xFFFFFFFFu, loaded == 0x7F4A5C31u)) FenceAsyncShared();
}

// WaitForLoads of the first `count` of these decoded tiles.
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

// The sums of a warp's tiles for one token. Columns 0 and 1 of the product are its two numbers; the lanes that hold
// them load x.
template <WeightFormat F>
class OneTokenTiles {
 public:
  __device__ __forceinline__ explicit OneTokenTiles(uint32_t lane)
      : lane_(lane), x_lane_(lane * 16), active_(lane < 8) {}

  // The tile at `tile` in shared memory.
  __device__ __forceinline__ void Decode(uint32_t tile, uint32_t (&a)[4][4]) const {
    DecodeTile<F>(LoadTile<F>(static_cast<const uint8_t*>(__cvta_shared_to_generic(tile)), static_cast<int>(lane_)), a);
  }

  // Tile `i` of a chunk, of which x begins at `x`; `scale` is FP8's.
  __device__ __forceinline__ void Multiply(const uint32_t (&a)[4][4], uint32_t x, int i, float scale = 0) {
    constexpr bool kScales = HasScalesBeside(F);
    float part[4] = {};
    float(&d)[4] = kScales ? part : sum_[i % 2];
    uint4(&columns)[2] = columns_[i % 2];
    const auto* from = static_cast<const uint4*>(
        __cvta_shared_to_generic(x_lane_ + x + static_cast<uint32_t>(i * kOneTokenTile)));
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

  // Rows g and g + 8, in the lanes with lane % 4 = 0; then starts anew.
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
  uint4 columns_[2][2] = {};  // what other lanes hold multiplies columns that nobody reads
  float sum_[2][4] = {};      // of even tiles, of odd ones
};

}  // namespace dsv4::tile_linear
