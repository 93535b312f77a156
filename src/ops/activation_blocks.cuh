// Activations in the form that matrix products of many tokens read (gemm_sm90.cuh): blocks of 8 tokens x 64 columns,
// 1,024 bytes. Block (c, r), of columns 64 c .. and tokens 8 r .., has number c * CeilDiv(T, 8) + r. The blocks have
// wgmma's 128-byte swizzle and the column order of the weight tiles (ActivationByte). If an activation is one FP16
// number, the previous op may write the blocks (layers/plan.h; linear.h: LinearTakesBlocks); then the rows of a block
// after the last token are unspecified.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace dsv4::sm90 {

// The byte at which block (column, row) begins; `row_blocks8`: CeilDiv(T, 8).
__host__ __device__ constexpr int64_t BlockBegin(int64_t column, int64_t row_blocks8, int64_t row) {
  return (column * row_blocks8 + row) * 1024;
}

// The byte of column `c` of row `r` in its block of 8 rows x 64 columns.
__host__ __device__ constexpr int ActivationByte(int r, int c) {
  const int t = c / 16, s = c / 4 % 4, i = c % 4;
  const int chunk = 2 * s + i / 2;
  return r * 128 + ((chunk ^ r) * 16) + (2 * t + i % 2) * 2;
}

// Two activations in the tensor cores' form, `low` in the low half; to nearest, ties to even. FP16 saturates at
// +-65504; a NaN stays a NaN.
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
