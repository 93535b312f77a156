// Tight FP4: E2M1 codes with a 4-bit exponent per 32 columns, relative to one exponent of the matrix. The tensor's
// global scale is 2 to that exponent, so a tile is decoded without it. For wgmma MXFP4 is decoded to BF16, NVFP4 to
// FP16.
#pragma once

#include "ops/weight_formats/fp4.cuh"

namespace dsv4 {

// The exponents of rows g (low nibble) and g + 8 are for the lane's 32 columns.
struct LaneTightTile {
  uint4 codes;  // as in LaneFp4Tile
  uint32_t exponents;

  __device__ __forceinline__ void Load(const uint8_t* tile, int lane) {
    codes = reinterpret_cast<const uint4*>(tile)[lane];
    exponents = tile[512 + lane / 2];
  }
  __device__ __forceinline__ void LoadShared(uint32_t codes_at, uint32_t exponents_at) {
    codes = shared_tile::LoadShared16(codes_at);
    exponents = shared_tile::LoadShared1(exponents_at);
  }
  // 2^(exponent + 97) as BF16: exponents of 224 and more leave the nibble's bits free. The codes are times 2^-126, so
  // the weights are times 2^-29.
  template <bool kByMul>
  __device__ __forceinline__ void Decode(uint32_t (&a)[4][4]) const {
    constexpr uint32_t kNibbles = 0x07800780u, kLeast = 0x70007000u;
    uint32_t scale[2];
    if constexpr (kByMul) {
      scale[0] = ((exponents * 0x00800080u) & kNibbles) | kLeast;
      scale[1] = ((exponents * 0x00080008u) & kNibbles) | kLeast;
    } else {
      const uint32_t both = ((exponents * 0x00080080u) & kNibbles) | kLeast;  // one row per half
      scale[0] = LowTwice(both);
      scale[1] = HighTwice(both);
    }
    DecodeFp4Tile<kByMul>(*this, scale, a);
  }
};

template <>
struct LaneTile<WeightFormat::kMxfp4Tight> : LaneTightTile {};
template <>
struct LaneTile<WeightFormat::kNvfp4Tight> : LaneTightTile {};

namespace sm90 {

struct RawTight {
  uint32_t v[4], exponent[2];
  template <bool kPaired>
  __device__ __forceinline__ void Load(uint32_t stage, const WarpRows& r, uint32_t lane) {
    const uint32_t to_exponents = 512 + lane / 2 - 16 * lane;
    if constexpr (kPaired) {
      LoadShared64(stage + r.low + 8 * r.half, v);
      LoadShared64(stage + r.high + 8 * r.half, v + 2);
      exponent[0] = LoadShared8(stage + r.low + to_exponents) >> (4 * r.half) & 15;
      exponent[1] = LoadShared8(stage + r.high + to_exponents) >> (4 * r.half) & 15;
    } else {
      LoadShared128(stage + r.low, v);
      const uint32_t both = LoadShared8(stage + r.low + to_exponents);
      exponent[0] = both & 15, exponent[1] = both >> 4;
    }
  }
};

template <>
struct RawWeights<WeightFormat::kNvfp4Tight> : RawTight {
  // The codes as FP16 are times 2^-14; 2^exponent is an FP16 up to 2^15.
  __device__ __forceinline__ void Decode(const uint32_t*, uint32_t* a) const {
    constexpr uint32_t kStep = 0x04000400u, kOne = 0x3C003C00u;
    DecodeFp4RowHalf(v[0], v[1], exponent[0] * kStep + kOne, a);
    DecodeFp4RowHalf(v[2], v[3], exponent[1] * kStep + kOne, a + 1);
  }
};

template <>
struct RawWeights<WeightFormat::kMxfp4Tight> : RawTight {
  // As in LaneTightTile.
  __device__ __forceinline__ void Decode(const uint32_t*, uint32_t* a) const {
    constexpr uint32_t kStep = 0x00800080u, kLeast = 0x70007000u;
    DecodeFp4Row(v[0], v[1], exponent[0] * kStep + kLeast, a);
    DecodeFp4Row(v[2], v[3], exponent[1] * kStep + kLeast, a + 1);
  }
};

}  // namespace sm90

}  // namespace dsv4
