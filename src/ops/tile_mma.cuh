// Packed weight tiles (ops/pack_weight/pack_weight.h) as operands of mma.m16n8k16: 16 rows x 64 columns become the A
// fragments of four steps; the B operand is the activations in BF16. Decoding is exact for every format.
//
//   LaneTile<F> raw = LoadTile<F>(tile, lane);        // global or shared memory
//   uint32_t a[4][4];
//   DecodeTile<F>(raw, a);                            // a[s]: step s
//   for (s) MmaBf16(acc, a[s], b0, b1);               // b0: x[16 t + 4 s + {0, 1}], b1: x[.. + {2, 3}] of token g
//   y = acc * MmaFactor(F) * global_scale             // FP8: also * block scale of (row / 16, column / 128)
//
// Lane 4 g + t. acc[0], acc[1]: row g, tokens 2 t, 2 t + 1; acc[2], acc[3]: row g + 8. A fragment of one warp of
// wgmma.m64nNk16 is the same.
#pragma once

#include <cstdint>

#include "ops/weight_formats/formats.cuh"

namespace dsv4 {

// d += A (16 x 16, row) * B (16 x 8, col).
__device__ __forceinline__ void MmaBf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// x = hi + mid + lo, exact for finite x: each has 8 of the 24 significant bits. Infinities and NaNs stay in hi.
struct Bf16Parts {
  float hi, mid, lo;
};
__device__ __forceinline__ Bf16Parts SplitToBf16(float x) {
  if (!(fabsf(x) < __int_as_float(0x7F800000))) return {x, 0.0f, 0.0f};
  const float hi = __uint_as_float(__float_as_uint(x) & 0xFFFF0000u), rest = x - hi;
  const float mid = __uint_as_float(__float_as_uint(rest) & 0xFFFF0000u);
  return {hi, mid, rest - mid};
}

// Two floats as sums of two BF16 numbers each, `low` in the low halves. hi is rounded to nearest, lo is the rest
// rounded to nearest; the sum is within 2^-17 of the value. lo is 0 for infinities, NaNs and values outside BF16's
// finite range.
struct Bf16Pairs {
  uint32_t hi, lo;
};
__device__ __forceinline__ Bf16Pairs SplitPairs(float low, float high) {
  const uint32_t hi = PackBf16(low, high);
  const float low_rest = fabsf(low) < 0x1p127f ? low - __uint_as_float(hi << 16) : 0.0f;
  const float high_rest = fabsf(high) < 0x1p127f ? high - __uint_as_float(hi & 0xFFFF0000u) : 0.0f;
  return {hi, PackBf16(low_rest, high_rest)};
}

template <WeightFormat F>
__device__ __forceinline__ LaneTile<F> LoadTile(const uint8_t* tile, int lane) {
  LaneTile<F> raw;
  raw.Load(tile, lane);
  return raw;
}

// kByMul: other instructions for the same numbers, for FP4 (fp4.cuh).
template <WeightFormat F, bool kByMul = false>
__device__ __forceinline__ void DecodeTile(const LaneTile<F>& raw, uint32_t (&a)[4][4]) {
  raw.template Decode<kByMul>(a);
}

}  // namespace dsv4
