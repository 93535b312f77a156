// Activations as matrix products of many tokens take them (gemm_sm90.cuh): in blocks of 8 tokens x 64 columns, 1,024
// bytes; block (c, r), of columns 64 c .. and tokens 8 r .., is number c * CeilDiv(T, 8) + r. wgmma's 128-byte swizzle
// and the column order of the weight tiles are applied (ActivationByte). As one FP16 number each they may come from the
// op in front (layers/plan.h; linear.h: LinearTakesBlocks); tokens behind the last one of a block may hold anything
// then.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace dsv4::sm90 {

// The byte at which block (column, row) begins; `row_blocks8`: CeilDiv(T, 8).
__host__ __device__ constexpr int64_t BlockBegin(int64_t column, int64_t row_blocks8, int64_t row) {
  return (column * row_blocks8 + row) * 1024;
}

// Where column `c` of row `r` lies in its block of 8 rows x 64 columns.
__host__ __device__ constexpr int ActivationByte(int r, int c) {
  const int t = c / 16, s = c / 4 % 4, i = c % 4;
  const int chunk = 2 * s + i / 2;
  return r * 128 + ((chunk ^ r) * 16) + (2 * t + i % 2) * 2;
}

// Two activations as they enter, `low` in the low half; to nearest, ties to even. FP16: +-65504 at most; a NaN stays
// one.
template <bool kHalf>
__device__ __forceinline__ uint32_t PackInputs(float low, float high) {
  uint32_t d;
  if constexpr (kHalf) {
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  }
  return d;
}

}  // namespace dsv4::sm90
