// Input rows of the expert products: rounded by the activation mode, then split into BF16 planes for the tensor cores.
// The sum of two planes is within 2^-17 of the row; the sum of three (ExecContext::f32_inputs) is the row.
#pragma once

#include <cuda_bf16.h>

#include "dsv4/types.h"
#include "kv/row_codec.cuh"
#include "ops/block_reduce.cuh"
#include "ops/tile_mma.cuh"

namespace dsv4::experts {

__host__ __device__ constexpr int64_t PaddedColumns(int64_t k) { return (k + 63) / 64 * 64; }

// Splits x into `Planes` BF16 numbers.
template <int Planes>
__device__ __forceinline__ void SplitBf16(float x, uint16_t (&plane)[Planes]) {
  static_assert(Planes == 2 || Planes == 3);
  if constexpr (Planes == 2) {
    const Bf16Pairs pairs = SplitPairs(x, 0.0f);
    plane[0] = static_cast<uint16_t>(pairs.hi);
    plane[1] = static_cast<uint16_t>(pairs.lo);
  } else {
    const Bf16Parts parts = SplitToBf16(x);
    plane[0] = static_cast<uint16_t>(__float_as_uint(parts.hi) >> 16);
    plane[1] = static_cast<uint16_t>(__float_as_uint(parts.mid) >> 16);
    plane[2] = static_cast<uint16_t>(__float_as_uint(parts.lo) >> 16);
  }
}

// RoundToFp8Blocks and RoundToNvfp4 (tensor/codec/activation.h) of x [n] by one block of Threads, bit for bit. Calls
// store(i, value) once per element.
template <int Threads, typename Store>
__device__ __forceinline__ void RoundedRow(const float* x, int64_t n, ActivationDtype mode, const Store& store) {
  const int thread = threadIdx.x;
  if (mode == ActivationDtype::kFp8) {
    const int warp = thread / 32, lane = thread % 32;
    for (int64_t b = int64_t{warp} * 128; b < n; b += Threads / 32 * 128) {
      float v[4], largest = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[i] = b + lane + 32 * i < n ? x[b + lane + 32 * i] : 0.0f;
        largest = fmaxf(largest, fabsf(v[i]));
      }
      const float scale = gpu::Exp2Int(gpu::Fp8ScaleExponent(WarpMax(largest))), inverse = 1.0f / scale;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (b + lane + 32 * i < n) store(b + lane + 32 * i, gpu::E4m3ToF32(gpu::F32ToE4m3(v[i] * inverse)) * scale);
      }
    }
  } else if (mode == ActivationDtype::kNvfp4) {
    float largest = 0, nan = 0;
    for (int64_t i = thread; i < n; i += Threads) {
      largest = fmaxf(largest, fabsf(x[i]));
      if (x[i] != x[i]) nan = 1;
    }
    largest = BlockMax<Threads>(largest);
    nan = BlockMax<Threads>(nan);
    const float global = largest / (6.0f * 448.0f);
    for (int64_t b = int64_t{thread} * 16; b < n; b += Threads * 16) {
      const int size = static_cast<int>(n - b < 16 ? n - b : 16);
      float block = 0;
      for (int i = 0; i < size; ++i) block = fmaxf(block, fabsf(x[b + i]));
      const float scale = gpu::E4m3ToF32(gpu::F32ToE4m3(fmaxf(block / (6.0f * global), 0x1p-9f))) * global;
      for (int i = 0; i < size; ++i) {
        float value = gpu::E2m1ToF32(gpu::F32ToE2m1(x[b + i] / scale)) * scale;
        if (!(global >= 0x1p-126f)) value = 0.0f;
        if (nan != 0) value = __uint_as_float(0x7FC00000u);
        store(b + i, value);
      }
    }
  } else {
    for (int64_t i = thread; i < n; i += Threads) store(i, x[i]);
  }
}

}  // namespace dsv4::experts
