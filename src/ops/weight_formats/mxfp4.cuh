// MXFP4: E2M1 codes with a power of two per 32.
#pragma once

#include "ops/weight_formats/fp4.cuh"

namespace dsv4 {

// E8M0 scale 2^(b-127), times 2^126, as a BF16 pair, for b <= 128; for larger b 2^127, for 255 NaN.
__device__ __forceinline__ uint32_t Mxfp4Scale(uint32_t b) {
  return (b == 255 ? 0x7FC0u : min(b + 126u, 254u) << 7) * 0x00010001u;
}
// For larger b: the second factor.
__device__ __forceinline__ bool Mxfp4ScaleIsLarge(uint32_t b) { return b > 128 && b < 255; }
__device__ __forceinline__ uint32_t Mxfp4SecondScale(uint32_t b) {
  return (Mxfp4ScaleIsLarge(b) ? b - 1 : 127) * 0x00800080u;
}

template <>
struct LaneTile<WeightFormat::kMxfp4> : LaneFp4Tile {
  template <bool kByMul>
  __device__ __forceinline__ void Decode(uint32_t (&a)[4][4]) const {
    const uint32_t scale[2] = {Mxfp4Scale(scales & 255u), Mxfp4Scale(scales >> 8)};
    DecodeFp4Tile<kByMul>(*this, scale, a);
    // 2^126 times a scale above 2 exceeds BF16. No model has such weights: this costs one vote, and almost never the
    // second product.
    const uint32_t b0 = scales & 255u, b1 = scales >> 8;
    if (__any_sync(0xFFFFFFFFu, Mxfp4ScaleIsLarge(b0) || Mxfp4ScaleIsLarge(b1))) {
      const uint32_t second[2] = {Mxfp4SecondScale(b0), Mxfp4SecondScale(b1)};
#pragma unroll
      for (int s = 0; s < 4; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[s][i] = MulBf16x2(a[s][i], second[i % 2]);
      }
    }
  }
};

namespace sm90 {

// E8M0 scale byte as a BF16 pair. 2^-127 is a subnormal; 255 is NaN.
__device__ __forceinline__ uint32_t E8m0AsBf16(uint32_t byte) {
  return (byte << 7 | (byte == 0 || byte == 255 ? 0x40u : 0u)) * 0x00010001u;
}

template <>
struct RawWeights<WeightFormat::kMxfp4> : RawFp4 {
  // Two products: times 2^126 gives the codes; then the scale may be any power of two of BF16.
  __device__ __forceinline__ void Decode(const uint32_t*, uint32_t* a) const {
    constexpr uint32_t kUnit = 0x7E807E80u;  // 2^126
    const uint32_t s[2] = {E8m0AsBf16(scale[0]), E8m0AsBf16(scale[1])};
    DecodeFp4Row(v[0], v[1], kUnit, a);
    DecodeFp4Row(v[2], v[3], kUnit, a + 1);
#pragma unroll
    for (int i = 0; i < 16; ++i) a[i] = MultiplyBf16x2(a[i], s[i % 2]);
  }
};

}  // namespace sm90

}  // namespace dsv4
