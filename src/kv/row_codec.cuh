// KV row formats on the GPU (kv/row_format.h): the same bytes and values as the CPU's EncodeRow, DecodeRow and
// RoundRow. All 32 lanes of a warp call a *Warp function with the same arguments. These functions contain no block
// barrier.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kv/layout.h"

namespace dsv4::gpu {

// ---- codes ----

__device__ __forceinline__ float Exp2Int(int e) { return __uint_as_float(static_cast<uint32_t>(e + 127) << 23); }

__device__ __forceinline__ int CeilLog2(float x) {  // for a finite normal x > 0
  const uint32_t bits = __float_as_uint(x);
  return static_cast<int>((bits >> 23) & 0xFFu) - 127 + ((bits & 0x7FFFFFu) != 0 ? 1 : 0);
}

__device__ __forceinline__ uint8_t E8m0FromExponent(int e) { return static_cast<uint8_t>(e + 127); }

__device__ __forceinline__ float E8m0ToF32(uint8_t code) {
  if (code == 0xFF) return __uint_as_float(0x7FC00000u);
  if (code == 0) return __uint_as_float(0x00400000u);  // 2^-127
  return __uint_as_float(static_cast<uint32_t>(code) << 23);
}

__device__ __forceinline__ float E4m3ToF32(uint8_t code) {
  const __half_raw h = __nv_cvt_fp8_to_halfraw(code, __NV_E4M3);
  return __half2float(__half(h));
}

// Keeps the sign of a NaN, as on the CPU.
__device__ __forceinline__ uint8_t F32ToE4m3(float x) {
  const uint8_t sign = static_cast<uint8_t>((__float_as_uint(x) >> 24) & 0x80u);
  return static_cast<uint8_t>(sign | (__nv_cvt_float_to_fp8(fabsf(x), __NV_SATFINITE, __NV_E4M3) & 0x7Fu));
}

// Rounds to nearest, ties to the even code; values beyond 6 saturate; a NaN becomes 6, as on the CPU.
__device__ __forceinline__ uint8_t F32ToE2m1(float x) {
  const float a = fabsf(x);
  const int code = !(a <= 0.25f) + !(a < 0.75f) + !(a <= 1.25f) + !(a < 1.75f) + !(a <= 2.5f) + !(a < 3.5f) +
                   !(a <= 5.0f);
  return static_cast<uint8_t>(code | static_cast<int>((__float_as_uint(x) >> 28) & 8u));
}

__device__ __forceinline__ float E2m1ToF32(uint32_t code) {
  // As exponent and mantissa of a float the code is 2^-126 times its value, subnormals included.
  return __uint_as_float((code & 8u) << 28 | (code & 7u) << 22) * 0x1p126f;
}

__device__ __forceinline__ uint16_t F32ToBf16(float x) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);  // quiet NaN
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
__device__ __forceinline__ float Bf16ToF32(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }
__device__ __forceinline__ float RoundToBf16(float x) { return Bf16ToF32(F32ToBf16(x)); }

// Exponents of a block's power-of-two scale, given max |x| of the block.
__device__ __forceinline__ int Fp8ScaleExponent(float largest) {
  return CeilLog2(__fdiv_rn(fmaxf(largest, 1e-4f), 448.0f));
}
__device__ __forceinline__ int Fp4ScaleExponent(float largest) {
  return CeilLog2(__fdiv_rn(fmaxf(largest, 6.0f * 0x1p-126f), 6.0f));
}

// ---- rows in memory (RowArray, EmittedRow and StateRow of kv/layout.h) ----

struct RowPointer {
  uint8_t* data;
  uint8_t* scale;
};

__device__ __forceinline__ RowPointer RowAt(uint8_t* base, int64_t capacity, const RowFormat& f, int64_t row) {
  return {base + row * f.data_bytes, base + capacity * f.data_bytes + row * f.scale_bytes};
}

// position % slots and position / per_row in 32 bits, which positions fit in: a 64-bit division is five times as slow.
__device__ __forceinline__ uint32_t SlotOf(int64_t position, int64_t slots) {
  return static_cast<uint32_t>(position) % static_cast<uint32_t>(slots);
}
__device__ __forceinline__ uint32_t RowOf(int64_t position, int64_t per_row) {
  return static_cast<uint32_t>(position) / static_cast<uint32_t>(per_row);
}

// The row of the token at `position` in the window ring.
__device__ __forceinline__ RowPointer WindowRow(const LayerLayout& layer, const SequenceView& s, int64_t position) {
  return RowAt(s.fixed + layer.window_offset, layer.window_slots, layer.window_row,
               SlotOf(position, layer.window_slots));
}

// Row `row` of the rows that compressor `c` has emitted. rows_per_page and row fit in 32 bits.
__device__ __forceinline__ RowPointer EmittedRowAt(const CompressorLayout& c, const SequenceView& s, int64_t row) {
  const uint32_t per_page = static_cast<uint32_t>(c.rows_per_page), r = static_cast<uint32_t>(row);
  const uint32_t page = r / per_page;
  return RowAt(s.pages[page] + c.rows_offset, per_page, c.row, r - page * per_page);
}

__device__ __forceinline__ float* StateRowAt(const CompressorLayout& c, const SequenceView& s, int64_t position) {
  return reinterpret_cast<float*>(s.fixed + c.state_offset) + SlotOf(position, c.num_slots) * 2 * c.overlap * c.dim;
}

// ---- whole rows ----

__device__ __forceinline__ uint16_t LoadU16(const uint8_t* p) {  // any alignment
  return static_cast<uint16_t>(p[0] | (p[1] << 8));
}
__device__ __forceinline__ void StoreU16(uint8_t* p, uint16_t v) {
  p[0] = static_cast<uint8_t>(v & 0xFF);
  p[1] = static_cast<uint8_t>(v >> 8);
}

// Channel i of a row.
__device__ __forceinline__ float DecodeChannel(const RowFormat& f, const uint8_t* data, const uint8_t* scale,
                                               int64_t i) {
  switch (f.kind) {
    case RowFormat::Kind::kFp8: {
      const int64_t nope = f.dim - f.rope_dim;
      if (i < nope) return E4m3ToF32(data[i]) * E8m0ToF32(scale[i / kKvScaleBlock]);
      return Bf16ToF32(LoadU16(data + nope + 2 * (i - nope)));
    }
    case RowFormat::Kind::kFp4:
      return E2m1ToF32(static_cast<uint32_t>(data[i / 2] >> (4 * (i & 1))) & 15u) *
             E8m0ToF32(scale[i / kIndexScaleBlock]);
    case RowFormat::Kind::kBf16:
      return Bf16ToF32(LoadU16(data + 2 * i));
    case RowFormat::Kind::kF32:
      return reinterpret_cast<const float*>(data)[i];
  }
  return 0;
}

namespace internal {

__device__ __forceinline__ float LargestOfWarp(float x) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, o));
  return x;
}

// max |x| over x[begin, end), at most 64 channels; NaNs are ignored.
__device__ __forceinline__ float LargestInBlock(const float* x, int64_t begin, int64_t end, int lane) {
  float largest = 0;
  for (int64_t i = begin + lane; i < end; i += 32) largest = fmaxf(largest, fabsf(x[i]));
  return LargestOfWarp(largest);
}

}  // namespace internal

// x: f32 [dim], readable by the whole warp. Warps first = 0 .. step - 1 together encode one row.
__device__ inline void EncodeRowWarp(const RowFormat& f, const float* x, uint8_t* data, uint8_t* scale, int lane,
                                     int first = 0, int step = 1) {
  const int64_t stride = 32 * step, at = lane + 32 * first;
  switch (f.kind) {
    case RowFormat::Kind::kFp8: {
      const int64_t nope = f.dim - f.rope_dim, blocks = (nope + kKvScaleBlock - 1) / kKvScaleBlock;
      for (int64_t b = first * kKvScaleBlock; b < nope; b += step * kKvScaleBlock) {
        const int64_t end = b + kKvScaleBlock < nope ? b + kKvScaleBlock : nope;
        const int exponent = Fp8ScaleExponent(internal::LargestInBlock(x, b, end, lane));
        const float inverse = Exp2Int(-exponent);
        if (lane == 0) scale[b / kKvScaleBlock] = E8m0FromExponent(exponent);
        for (int64_t i = b + lane; i < end; i += 32) data[i] = F32ToE4m3(x[i] * inverse);
      }
      for (int64_t i = blocks + at; i < f.scale_bytes; i += stride) scale[i] = 0;
      for (int64_t i = nope + at; i < f.dim; i += stride) StoreU16(data + nope + 2 * (i - nope), F32ToBf16(x[i]));
      return;
    }
    case RowFormat::Kind::kFp4:
      for (int64_t b = first * kIndexScaleBlock; b < f.dim; b += step * kIndexScaleBlock) {
        const int64_t i = b + lane;
        const float v = i < f.dim ? x[i] : 0.0f;
        const int exponent = Fp4ScaleExponent(internal::LargestOfWarp(fabsf(v)));
        if (lane == 0) scale[b / kIndexScaleBlock] = E8m0FromExponent(exponent);
        const uint32_t code = F32ToE2m1(__fdiv_rn(v, Exp2Int(exponent)));
        const uint32_t next = __shfl_down_sync(0xFFFFFFFFu, code, 1);
        if (lane % 2 == 0 && i < f.dim) data[i / 2] = static_cast<uint8_t>(code | next << 4);
      }
      return;
    case RowFormat::Kind::kBf16:
      for (int64_t i = at; i < f.dim; i += stride) StoreU16(data + 2 * i, F32ToBf16(x[i]));
      return;
    case RowFormat::Kind::kF32:
      for (int64_t i = at; i < f.dim; i += stride) reinterpret_cast<float*>(data)[i] = x[i];
      return;
  }
}

__device__ inline void DecodeRowWarp(const RowFormat& f, const uint8_t* data, const uint8_t* scale, float* x,
                                     int lane) {
  for (int64_t i = lane; i < f.dim; i += 32) x[i] = DecodeChannel(f, data, scale, i);
}

// x = Decode(Encode(x)), in place.
__device__ inline void RoundRowWarp(const RowFormat& f, float* x, int lane) {
  switch (f.kind) {
    case RowFormat::Kind::kFp8: {
      const int64_t nope = f.dim - f.rope_dim;
      for (int64_t b = 0; b < nope; b += kKvScaleBlock) {
        const int64_t end = b + kKvScaleBlock < nope ? b + kKvScaleBlock : nope;
        const int exponent = Fp8ScaleExponent(internal::LargestInBlock(x, b, end, lane));
        const float s = Exp2Int(exponent), inverse = Exp2Int(-exponent);
        __syncwarp();  // every lane has read the block
        for (int64_t i = b + lane; i < end; i += 32) x[i] = E4m3ToF32(F32ToE4m3(x[i] * inverse)) * s;
      }
      for (int64_t i = nope + lane; i < f.dim; i += 32) x[i] = RoundToBf16(x[i]);
      return;
    }
    case RowFormat::Kind::kFp4:
      for (int64_t b = 0; b < f.dim; b += kIndexScaleBlock) {
        const int64_t i = b + lane;
        const float v = i < f.dim ? x[i] : 0.0f;
        const float s = Exp2Int(Fp4ScaleExponent(internal::LargestOfWarp(fabsf(v))));
        if (i < f.dim) x[i] = E2m1ToF32(F32ToE2m1(__fdiv_rn(v, s))) * s;
      }
      return;
    case RowFormat::Kind::kBf16:
      for (int64_t i = lane; i < f.dim; i += 32) x[i] = RoundToBf16(x[i]);
      return;
    case RowFormat::Kind::kF32:
      return;
  }
}

}  // namespace dsv4::gpu
