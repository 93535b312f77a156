// BF16: nothing to decode.
#pragma once

#include "ops/weight_formats/lane_tile.cuh"

namespace dsv4 {

template <>
struct LaneTile<WeightFormat::kBf16> {
  uint4 step[4];

  __device__ __forceinline__ void Load(const uint8_t* tile, int lane) {
#pragma unroll
    for (int s = 0; s < 4; ++s) step[s] = (reinterpret_cast<const uint4*>(tile) + lane)[32 * s];
  }
  __device__ __forceinline__ void LoadShared(uint32_t codes_at, uint32_t) {
#pragma unroll
    for (int s = 0; s < 4; ++s) step[s] = shared_tile::LoadShared16(codes_at + 512 * s);
  }
  template <bool>
  __device__ __forceinline__ void Decode(uint32_t (&a)[4][4]) const {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      a[s][0] = step[s].x;
      a[s][1] = step[s].y;
      a[s][2] = step[s].z;
      a[s][3] = step[s].w;
    }
  }
};

namespace sm90 {

template <>
struct RawWeights<WeightFormat::kBf16> {
  uint32_t low, high;
  template <bool kPaired>
  __device__ __forceinline__ void Load(uint32_t stage, const WarpRows& r, uint32_t) {
    low = stage + r.low + (kPaired ? 4 * r.half : 0);
    high = stage + r.high + (kPaired ? 4 * r.half : 0);
    paired = kPaired;
  }
  // Loads directly into A registers, so it cannot run earlier.
  __device__ __forceinline__ void Decode(const uint32_t*, uint32_t* a) const {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      if (paired) {
        a[4 * s] = LoadShared32(low + 512 * s);
        a[4 * s + 1] = LoadShared32(high + 512 * s);
        a[4 * s + 2] = LoadShared32(low + 512 * s + 8);
        a[4 * s + 3] = LoadShared32(high + 512 * s + 8);
      } else {
        LoadShared128(low + 512 * s, a + 4 * s);
      }
    }
  }
  bool paired;  // a constant
};

}  // namespace sm90

}  // namespace dsv4
