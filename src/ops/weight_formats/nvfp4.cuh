// NVFP4: E2M1 codes with an E4M3 scale per 16, TileScale in tiles.
#pragma once

#include "ops/weight_formats/fp4.cuh"

namespace dsv4 {

// An NVFP4 scale (TileScale), times 2^118, as a BF16 pair.
__device__ __forceinline__ uint32_t Nvfp4Scale(uint32_t scale) { return scale * 0x00100010u + 0x70007000u; }

// The scales of rows g and g + 8, one BF16 each.
__device__ __forceinline__ uint32_t Nvfp4Scales(uint32_t scales) {
  return __byte_perm(scales, 0, 0x4140) * 16u + 0x70007000u;
}

template <>
struct LaneTile<WeightFormat::kNvfp4> : LaneFp4Tile {
  template <bool kByMul>
  __device__ __forceinline__ void Decode(uint32_t (&a)[4][4]) const {
    uint32_t scale[2];
    if constexpr (kByMul) {
      scale[0] = Nvfp4Scale(scales & 255u);
      scale[1] = Nvfp4Scale(scales >> 8);
    } else {
      const uint32_t both = Nvfp4Scales(scales);
      scale[0] = LowTwice(both);  // needs no instruction: HMUL2 can read one half of a register twice
      scale[1] = HighTwice(both);
    }
    DecodeFp4Tile<kByMul>(*this, scale, a);
  }
};

namespace sm90 {

// TileScale of a block as an FP16 pair times 2^6. The product with a code is weight * 2^-8, exact.
__device__ __forceinline__ uint32_t Nvfp4ScaleHalf(uint32_t byte) { return byte * 0x00800080u; }

template <>
struct RawWeights<WeightFormat::kNvfp4> : RawFp4 {
  __device__ __forceinline__ void Decode(const uint32_t*, uint32_t* a) const {
    const uint32_t low = Nvfp4ScaleHalf(scale[0]), high = Nvfp4ScaleHalf(scale[1]);
    DecodeFp4RowHalf(v[0], v[1], low, a);
    DecodeFp4RowHalf(v[2], v[3], high, a + 1);
  }
};

}  // namespace sm90

}  // namespace dsv4
