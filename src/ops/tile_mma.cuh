// Packed weight tiles (ops/pack_weight/pack_weight.h) as operands of mma.m16n8k16: 16 rows x 64 columns become the A
// fragments of four steps; the B operand is the activations in BF16. Decoding is exact for every format.
//
//   LaneTile<F> raw = LoadTile<F>(tile, lane);        // global or shared memory
//   uint32_t a[4][4];
//   DecodeTile<F>(raw, a);                            // a[s]: step s
//   for (s) MmaBf16(acc, a[s], b0, b1);               // b0: x[16 t + 4 s + {0, 1}], b1: x[.. + {2, 3}] of token g
//   y = acc * kTileFactor<F> * global_scale           // FP8: * block scale of (row / 16, column / 128) as well
//
// Lane 4 g + t. acc[0], acc[1]: row g, tokens 2 t, 2 t + 1; acc[2], acc[3]: row g + 8. A fragment of one warp of
// wgmma.m64nNk16 is the same.
//
// FP4: shifting and masking gives code * 2^-126 as a BF16 (the code 0.5 as a BF16 subnormal); one multiplication with the
// scale times a power of two is exact, for a 2-bit by a 4-bit significand. The idea of packing four codes in 16 bits so
// that three need one shift and one mask is that of Triton's and FlashInfer's FP4 converters.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "ops/pack_weight/pack_weight.h"

namespace dsv4 {

// What accumulators must be multiplied by, besides the tensor's own scales.
template <WeightFormat F>
inline constexpr float kTileFactor = F == WeightFormat::kNvfp4 ? 256.0f : 1.0f;

// d += A (16 x 16, row) * B (16 x 8, col).
__device__ __forceinline__ void MmaBf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two floats as BF16, `low` in the low half; to nearest, ties to even.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// Product of BF16 pairs; subnormals count.
__device__ __forceinline__ uint32_t MulBf16x2(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

// x = hi + mid + lo, exact for finite x: each takes 8 of the 24 significant bits. Infinities and NaNs stay in hi.
struct Bf16Parts {
  float hi, mid, lo;
};
__device__ __forceinline__ Bf16Parts SplitToBf16(float x) {
  if (!(fabsf(x) < __int_as_float(0x7F800000))) return {x, 0.0f, 0.0f};
  const float hi = __uint_as_float(__float_as_uint(x) & 0xFFFF0000u), rest = x - hi;
  const float mid = __uint_as_float(__float_as_uint(rest) & 0xFFFF0000u);
  return {hi, mid, rest - mid};
}

// Two floats as sums of two BF16 numbers each, `low` in the low halves: hi to nearest, lo the rest to nearest, together
// within 2^-17 of the value. Nothing is left of infinities, NaNs and what BF16 has no finite number for.
struct Bf16Pairs {
  uint32_t hi, lo;
};
__device__ __forceinline__ Bf16Pairs SplitPairs(float low, float high) {
  const uint32_t hi = PackBf16(low, high);
  const float low_rest = fabsf(low) < 0x1p127f ? low - __uint_as_float(hi << 16) : 0.0f;
  const float high_rest = fabsf(high) < 0x1p127f ? high - __uint_as_float(hi & 0xFFFF0000u) : 0.0f;
  return {hi, PackBf16(low_rest, high_rest)};
}

// What a lane holds of a tile.
template <WeightFormat F>
struct LaneTile;

struct LaneFp4Tile {
  uint4 codes;      // words 0, 1: row g; 2, 3: row g + 8
  uint32_t scales;  // byte 0: row g; 1: row g + 8
};
template <>
struct LaneTile<WeightFormat::kNvfp4> : LaneFp4Tile {};
template <>
struct LaneTile<WeightFormat::kMxfp4> : LaneFp4Tile {};
template <>
struct LaneTile<WeightFormat::kFp8Block> {
  uint4 codes[2];  // row g, row g + 8; word s: step s
};
template <>
struct LaneTile<WeightFormat::kBf16> {
  uint4 step[4];
};

template <WeightFormat F>
__device__ __forceinline__ LaneTile<F> LoadTile(const uint8_t* tile, int lane) {
  LaneTile<F> raw;
  const uint4* words = reinterpret_cast<const uint4*>(tile) + lane;
  if constexpr (F == WeightFormat::kNvfp4 || F == WeightFormat::kMxfp4) {
    raw.codes = words[0];
    raw.scales = reinterpret_cast<const uint16_t*>(tile + 512)[lane];
  } else if constexpr (F == WeightFormat::kFp8Block) {
    raw.codes[0] = words[0];
    raw.codes[1] = words[32];
  } else {
#pragma unroll
    for (int s = 0; s < 4; ++s) raw.step[s] = words[32 * s];
  }
  return raw;
}

// What the fourth column pairs of a row's two words lie in: the upper bytes of the words' halves.
__device__ __forceinline__ uint32_t Fp4Rest(uint32_t low, uint32_t high) { return __byte_perm(low, high, 0x7351); }

// The eight column pairs of a row's two words of FP4 codes, times 2^-126. Logic, shifts and permutes go one in two cycles of a
// sub-core, left shifts (as multiplications) beside them: 12 of the former, where a shift of its own for every code takes 14.
// kByMul: the shift to the right as a multiplication, too, and each scale by one of its own. Which is faster was measured, not
// understood: experts of one token take 28.9 us as it is and 29.5 by products, of 16 and 32 tokens 335 and 551, 321 and 539.
template <bool kByMul = false>
__device__ __forceinline__ void ExpandFp4(uint32_t low, uint32_t high, uint32_t (&o)[8]) {
  const uint32_t rest = Fp4Rest(low, high);
  o[0] = low & 0x81C081C0u;
  o[1] = (low << 3) & 0x81C081C0u;
  o[2] = (low << 6) & 0x81C081C0u;
  o[3] = ((rest << 1) & 0x80C080C0u) | ((rest << 5) & 0x01000100u);
  o[4] = high & 0x81C081C0u;
  o[5] = (high << 3) & 0x81C081C0u;
  o[6] = (high << 6) & 0x81C081C0u;
  o[7] = ((rest << 5) & 0x80808080u) | ((kByMul ? __umulhi(rest, 1u << 27) : rest >> 5) & 0x01400140u);
}

__device__ __forceinline__ float2 E4m3PairToF32(uint32_t pair) {
  const __half2_raw h = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  return __half22float2(__half2(h));
}

// A BF16 twice.
__device__ __forceinline__ uint32_t LowTwice(uint32_t pair) {
  uint32_t r;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\nmov.b32 %0, {low, low};\n}" : "=r"(r) : "r"(pair));
  return r;
}
__device__ __forceinline__ uint32_t HighTwice(uint32_t pair) {
  uint32_t r;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\nmov.b32 %0, {high, high};\n}" : "=r"(r) : "r"(pair));
  return r;
}

// An NVFP4 scale (TileScale), times 2^118, as a BF16 pair.
__device__ __forceinline__ uint32_t Nvfp4Scale(uint32_t scale) { return scale * 0x00100010u + 0x70007000u; }

// Those of rows g and g + 8, one BF16 each.
__device__ __forceinline__ uint32_t Nvfp4Scales(uint32_t scales) { return __byte_perm(scales, 0, 0x4140) * 16u + 0x70007000u; }

// E8M0 scale 2^(b-127), times 2^126, as a BF16 pair, for b <= 128; for larger b 2^127, for 255 NaN.
__device__ __forceinline__ uint32_t Mxfp4Scale(uint32_t b) {
  return (b == 255 ? 0x7FC0u : min(b + 126u, 254u) << 7) * 0x00010001u;
}
// The factor that is missing then.
__device__ __forceinline__ bool Mxfp4ScaleIsLarge(uint32_t b) { return b > 128 && b < 255; }
__device__ __forceinline__ uint32_t Mxfp4SecondScale(uint32_t b) {
  return (Mxfp4ScaleIsLarge(b) ? b - 1 : 127) * 0x00800080u;
}

template <WeightFormat F, bool kByMul = false>
__device__ __forceinline__ void DecodeTile(const LaneTile<F>& raw, uint32_t (&a)[4][4]) {
  if constexpr (F == WeightFormat::kNvfp4 || F == WeightFormat::kMxfp4) {
    uint32_t scale[2];
    if constexpr (F == WeightFormat::kNvfp4 && kByMul) {
      scale[0] = Nvfp4Scale(raw.scales & 255u);
      scale[1] = Nvfp4Scale(raw.scales >> 8);
    } else if constexpr (F == WeightFormat::kNvfp4) {
      const uint32_t both = Nvfp4Scales(raw.scales);
      scale[0] = LowTwice(both);  // no instruction: HMUL2 takes one half of a register twice
      scale[1] = HighTwice(both);
    } else {
      scale[0] = Mxfp4Scale(raw.scales & 255u);
      scale[1] = Mxfp4Scale(raw.scales >> 8);
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      uint32_t o[8];
      row == 0 ? ExpandFp4<kByMul>(raw.codes.x, raw.codes.y, o) : ExpandFp4<kByMul>(raw.codes.z, raw.codes.w, o);
#pragma unroll
      for (int pair = 0; pair < 8; ++pair) a[pair / 2][row + pair % 2 * 2] = MulBf16x2(o[pair], scale[row]);
    }
    if constexpr (F == WeightFormat::kMxfp4) {
      // 2^126 times a scale above 2 is no BF16. No model has such weights: one vote, hardly ever the second product.
      const uint32_t b0 = raw.scales & 255u, b1 = raw.scales >> 8;
      if (__any_sync(0xFFFFFFFFu, Mxfp4ScaleIsLarge(b0) || Mxfp4ScaleIsLarge(b1))) {
        const uint32_t second[2] = {Mxfp4SecondScale(b0), Mxfp4SecondScale(b1)};
#pragma unroll
        for (int s = 0; s < 4; ++s) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[s][i] = MulBf16x2(a[s][i], second[i % 2]);
        }
      }
    }
  } else if constexpr (F == WeightFormat::kFp8Block) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint32_t words[4] = {raw.codes[row].x, raw.codes[row].y, raw.codes[row].z, raw.codes[row].w};
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const float2 even = E4m3PairToF32(words[s] & 0xFFFFu), odd = E4m3PairToF32(words[s] >> 16);
        a[s][row] = PackBf16(even.x, odd.x);
        a[s][row + 2] = PackBf16(even.y, odd.y);
      }
    }
  } else {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      a[s][0] = raw.step[s].x;
      a[s][1] = raw.step[s].y;
      a[s][2] = raw.step[s].z;
      a[s][3] = raw.step[s].w;
    }
  }
}

}  // namespace dsv4
