// FP8: E4M3 codes. The scales of 128 x 128 weights are in a separate array and multiply the sums over 128 columns.
#pragma once

#include "ops/weight_formats/lane_tile.cuh"

namespace dsv4 {

__device__ __forceinline__ float2 E4m3PairToF32(uint32_t pair) {
  const __half2_raw h = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  return __half22float2(__half2(h));
}

template <>
struct LaneTile<WeightFormat::kFp8Block> {
  uint4 codes[2];  // row g, row g + 8; word s: step s

  __device__ __forceinline__ void Load(const uint8_t* tile, int lane) {
    const uint4* words = reinterpret_cast<const uint4*>(tile) + lane;
    codes[0] = words[0];
    codes[1] = words[32];
  }
  __device__ __forceinline__ void LoadShared(uint32_t codes_at, uint32_t) {
    codes[0] = shared_tile::LoadShared16(codes_at);
    codes[1] = shared_tile::LoadShared16(codes_at + 512);
  }
  template <bool>
  __device__ __forceinline__ void Decode(uint32_t (&a)[4][4]) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint32_t words[4] = {codes[row].x, codes[row].y, codes[row].z, codes[row].w};
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const float2 even = E4m3PairToF32(words[s] & 0xFFFFu), odd = E4m3PairToF32(words[s] >> 16);
        a[s][row] = PackBf16(even.x, odd.x);
        a[s][row + 2] = PackBf16(even.y, odd.y);
      }
    }
  }
};

namespace sm90 {

// Four E4M3 codes times 2^-8 as FP16 pairs, times `scale`.
__device__ __forceinline__ void DecodeFp8Word(uint32_t v, uint32_t scale, uint32_t* a) {
  a[0] = MultiplyHalf2((v << 8 & 0x80008000u) | (v << 7 & 0x3F803F80u), scale);
  a[2] = MultiplyHalf2((v & 0x80008000u) | (v >> 1 & 0x3F803F80u), scale);
}

template <>
struct RawWeights<WeightFormat::kFp8Block> {
  uint32_t v[8];
  template <bool kPaired>
  __device__ __forceinline__ void Load(uint32_t stage, const WarpRows& r, uint32_t) {
    LoadShared128(stage + r.low + (kPaired ? 512 * r.half : 0), v);
    LoadShared128(stage + r.high + (kPaired ? 512 * r.half : 512), v + 4);
  }
  __device__ __forceinline__ void Decode(const uint32_t* scale, uint32_t* a) const {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      DecodeFp8Word(v[s], scale[0], a + 4 * s);
      DecodeFp8Word(v[4 + s], scale[1], a + 4 * s + 1);
    }
  }
};

}  // namespace sm90

}  // namespace dsv4
