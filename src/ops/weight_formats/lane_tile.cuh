// The interface of a format: the two templates that nvfp4.cuh, mxfp4.cuh, tight_fp4.cuh, fp8.cuh and bf16.cuh
// specialise, and their common functions. Decoding is exact.
//
//   LaneTile<F>     a lane's part of a tile, for mma.m16n8k16: Load (global or shared memory); LoadShared (by shared
//                   addresses that stay in registers: of the lane's 16 bytes of codes, and of its scales, which are at
//                   ScalesOfLane); Decode: the A fragments of four steps (ops/tile_mma.cuh), times MmaFactor(F)
//   RawWeights<F>   the same for wgmma (ops/gemm_sm90.cuh): Load a slab's codes from a stage, Decode them into A
//                   registers
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "ops/pack_weight/pack_weight.h"

namespace dsv4 {

template <WeightFormat F>
struct LaneTile;

// Two floats as BF16, `low` in the low half; to nearest, ties to even.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// Product of BF16 pairs; subnormals are not flushed.
__device__ __forceinline__ uint32_t MulBf16x2(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

namespace shared_tile {

__device__ __forceinline__ uint4 LoadShared16(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}
__device__ __forceinline__ uint32_t LoadShared2(uint32_t at) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ uint32_t LoadShared1(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}

}  // namespace shared_tile

namespace sm90 {

// The rows that a warp multiplies. Plain: 16 rows of one tile. Paired: rows g of its instruction are `half` (0: rows
// 0-7, 1: rows 8-15) of one tile (gate), rows g + 8 the same half of another (up), so that both are in one thread.
struct WarpRows {
  uint32_t low, high;  // offsets of the tiles in a stage, this lane's 16 L included
  uint32_t half;
};

// A lane's undecoded weights of one slab: its row's 16 columns go into A registers a[4 s] and a[4 s + 2], s < 4.
template <WeightFormat kFormat>
struct RawWeights;

// Registers that a running wgmma reads must keep their values until it is waited for, which the compiler does not know.
// So every instruction that writes an A register is volatile: it stays after the wait that precedes it.
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

}  // namespace sm90

}  // namespace dsv4
