// Weights for WideLinearKernel: a lane's part of a tile as BF16, with the values of LaneTile (tile_mma.cuh). As in
// RawWeights, every instruction that writes an A register is volatile.
#pragma once

#include "ops/tile_mma.cuh"

namespace dsv4::wide_linear {

template <WeightFormat F>
struct Weights : sm90::RawWeights<F> {  // MXFP4, BF16: RawWeights are also BF16
  __device__ __forceinline__ void Load(uint32_t stage, const sm90::WarpRows& rows, uint32_t lane) {
    sm90::RawWeights<F>::template Load<false>(stage, rows, lane);
  }
  __device__ __forceinline__ void Decode(uint32_t* a) const { sm90::RawWeights<F>::Decode(nullptr, a); }
};

template <>
struct Weights<WeightFormat::kNvfp4> {
  uint32_t v[4], scales;
  __device__ __forceinline__ void Load(uint32_t stage, const sm90::WarpRows& rows, uint32_t lane) {
    sm90::LoadShared128(stage + rows.low, v);
    scales = sm90::LoadShared16(stage + rows.low - 14 * lane + 512);
  }
  __device__ __forceinline__ void Decode(uint32_t* a) const {
    const uint32_t both = Nvfp4Scales(scales);
    sm90::DecodeFp4Row(v[0], v[1], LowTwice(both), a);
    sm90::DecodeFp4Row(v[2], v[3], HighTwice(both), a + 1);
  }
};

template <>
struct Weights<WeightFormat::kFp8Block> : sm90::RawWeights<WeightFormat::kFp8Block> {
  __device__ __forceinline__ void Load(uint32_t stage, const sm90::WarpRows& rows, uint32_t lane) {
    sm90::RawWeights<WeightFormat::kFp8Block>::Load<false>(stage, rows, lane);
  }
  __device__ __forceinline__ void Decode(uint32_t* a) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const uint32_t word = v[4 * row + s];
        const float2 even = E4m3PairToF32(word & 0xFFFFu), odd = E4m3PairToF32(word >> 16);
        a[4 * s + row] = Pack(even.x, odd.x);
        a[4 * s + row + 2] = Pack(even.y, odd.y);
      }
    }
  }

 private:
  __device__ __forceinline__ static uint32_t Pack(float low, float high) {
    uint32_t r;
    asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
  }
};

}  // namespace dsv4::wide_linear
