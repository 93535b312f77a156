// How the matrix products of many tokens (gemm_sm90.cuh) decode packed weights (src/ops/pack_weight) into wgmma's A registers: exactly.
#pragma once

#include <cstdint>

#include "ops/tile_mma.cuh"
#include "tensor/quant_tensor.h"

namespace dsv4::sm90 {

// One row's 16 columns of a lane go into A registers a[4 s] and a[4 s + 2], s < 4.

// Registers that a running wgmma reads must keep their values until it is waited for, which the compiler does not know.
// So whatever writes an A register is volatile: it stays behind the wait that is in front of it.
__device__ __forceinline__ uint32_t MultiplyBf16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm volatile("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

__device__ __forceinline__ uint32_t MultiplyHalf2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm volatile("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// A row's 16 codes (two words of pack_weight.h) as FP16 pairs times 2^-14, times `scale`.
__device__ __forceinline__ void DecodeFp4RowHalf(uint32_t low, uint32_t high, uint32_t scale, uint32_t* a) {
  constexpr uint32_t kSign = 0x80008000u, kMagnitude = 0x0E000E00u;
  const uint32_t rest = Fp4Rest(low, high);
  a[0] = MultiplyHalf2((low & kSign) | (low << 3 & kMagnitude), scale);
  a[2] = MultiplyHalf2((low << 3 & kSign) | (low << 6 & kMagnitude), scale);
  a[4] = MultiplyHalf2((low << 6 & kSign) | (low << 9 & kMagnitude), scale);
  a[6] = MultiplyHalf2((rest << 1 & kSign) | (rest << 4 & 0x06000600u) | (rest << 8 & 0x08000800u), scale);
  a[8] = MultiplyHalf2((high & kSign) | (high << 3 & kMagnitude), scale);
  a[10] = MultiplyHalf2((high << 3 & kSign) | (high << 6 & kMagnitude), scale);
  a[12] = MultiplyHalf2((high << 6 & kSign) | (high << 9 & kMagnitude), scale);
  a[14] = MultiplyHalf2((rest << 5 & kSign) | (rest << 8 & 0x04000400u) | (rest >> 2 & 0x0A000A00u), scale);
}

// The same as BF16 pairs times 2^-126 (see pack_weight.h), times `scale`.
__device__ __forceinline__ void DecodeFp4Row(uint32_t low, uint32_t high, uint32_t scale, uint32_t* a) {
  uint32_t o[8];
  ExpandFp4(low, high, o);
#pragma unroll
  for (int i = 0; i < 8; ++i) a[2 * i] = MultiplyBf16x2(o[i], scale);
}

// TileScale of a block as an FP16 pair times 2^6. The product with a code is then weight * 2^-8, exact.
__device__ __forceinline__ uint32_t Nvfp4ScaleHalf(uint32_t byte) { return byte * 0x00800080u; }

// E8M0 scale byte as a BF16 pair. 2^-127 is a subnormal; 255 is NaN.
__device__ __forceinline__ uint32_t E8m0AsBf16(uint32_t byte) {
  return (byte << 7 | (byte == 0 || byte == 255 ? 0x40u : 0u)) * 0x00010001u;
}

// Four E4M3 codes times 2^-8 as FP16 pairs, times `scale`.
__device__ __forceinline__ void DecodeFp8Word(uint32_t v, uint32_t scale, uint32_t* a) {
  a[0] = MultiplyHalf2((v << 8 & 0x80008000u) | (v << 7 & 0x3F803F80u), scale);
  a[2] = MultiplyHalf2((v & 0x80008000u) | (v >> 1 & 0x3F803F80u), scale);
}

__device__ __forceinline__ uint32_t LoadShared8(uint32_t a) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(a));
  return v;
}
__device__ __forceinline__ uint32_t LoadShared16(uint32_t a) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(a));
  return v;
}
__device__ __forceinline__ uint32_t LoadShared32(uint32_t a) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(a));
  return v;
}
__device__ __forceinline__ void LoadShared64(uint32_t a, uint32_t* v) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(a));
}
__device__ __forceinline__ void LoadShared128(uint32_t a, uint32_t* v) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(a));
}

// What a warp multiplies. Plain: 16 rows of one tile. Paired: rows g of its instruction are `half` (0: rows 0-7, 1: rows
// 8-15) of one tile (gate), rows g + 8 the same half of another (up), so that both meet in one thread.
struct WarpRows {
  uint32_t low, high;  // offsets of the tiles in a stage, this lane's 16 L included
  uint32_t half;
};

template <WeightFormat kFormat>
struct RawWeights;  // a lane's undecoded weights of one slab

template <>
struct RawWeights<WeightFormat::kNvfp4> {
  uint32_t v[4], scale[2];
  template <bool kPaired>
  __device__ __forceinline__ void Load(uint32_t stage, const WarpRows& r, uint32_t lane) {
    if constexpr (kPaired) {
      LoadShared64(stage + r.low + 8 * r.half, v);
      LoadShared64(stage + r.high + 8 * r.half, v + 2);
      scale[0] = LoadShared8(stage + r.low - 14 * lane + 512 + r.half);
      scale[1] = LoadShared8(stage + r.high - 14 * lane + 512 + r.half);
    } else {
      LoadShared128(stage + r.low, v);
      const uint32_t both = LoadShared16(stage + r.low - 14 * lane + 512);
      scale[0] = both & 255, scale[1] = both >> 8;
    }
  }
  __device__ __forceinline__ void Decode(const uint32_t*, uint32_t* a) const {
    const uint32_t low = Nvfp4ScaleHalf(scale[0]), high = Nvfp4ScaleHalf(scale[1]);
    DecodeFp4RowHalf(v[0], v[1], low, a);
    DecodeFp4RowHalf(v[2], v[3], high, a + 1);
  }
};

template <>
struct RawWeights<WeightFormat::kMxfp4> : RawWeights<WeightFormat::kNvfp4> {
  // Two products: 2^126 makes the codes themselves, the scale may be any power of two of BF16.
  __device__ __forceinline__ void Decode(const uint32_t*, uint32_t* a) const {
    constexpr uint32_t kUnit = 0x7E807E80u;  // 2^126
    const uint32_t s[2] = {E8m0AsBf16(scale[0]), E8m0AsBf16(scale[1])};
    DecodeFp4Row(v[0], v[1], kUnit, a);
    DecodeFp4Row(v[2], v[3], kUnit, a + 1);
#pragma unroll
    for (int i = 0; i < 16; ++i) a[i] = MultiplyBf16x2(a[i], s[i % 2]);
  }
};

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

template <>
struct RawWeights<WeightFormat::kBf16> {
  uint32_t low, high;
  template <bool kPaired>
  __device__ __forceinline__ void Load(uint32_t stage, const WarpRows& r, uint32_t) {
    low = stage + r.low + (kPaired ? 4 * r.half : 0);
    high = stage + r.high + (kPaired ? 4 * r.half : 0);
    paired = kPaired;
  }
  // Straight into A registers, so not before.
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

}  // namespace dsv4::sm90
