// Shared by NVFP4, MXFP4 and their tight forms: E2M1 codes in tiles.
//
// Shifting and masking gives code * 2^-126 as a BF16 (the code 0.5 as a BF16 subnormal). One multiplication by the
// scale times a power of two is exact, because a 2-bit significand is multiplied by a 4-bit one. Packing four codes in
// 16 bits so that three need one shift and one mask follows Triton's and FlashInfer's FP4 converters.
#pragma once

#include "ops/weight_formats/lane_tile.cuh"

namespace dsv4 {

struct LaneFp4Tile {
  uint4 codes;      // words 0, 1: row g; 2, 3: row g + 8
  uint32_t scales;  // byte 0: row g; 1: row g + 8

  __device__ __forceinline__ void Load(const uint8_t* tile, int lane) {
    codes = reinterpret_cast<const uint4*>(tile)[lane];
    scales = reinterpret_cast<const uint16_t*>(tile + 512)[lane];
  }
  __device__ __forceinline__ void LoadShared(uint32_t codes_at, uint32_t scales_at) {
    codes = shared_tile::LoadShared16(codes_at);
    scales = shared_tile::LoadShared2(scales_at);
  }
};

// The bits of the fourth column pairs of a row's two words: the upper bytes of the words' halves.
__device__ __forceinline__ uint32_t Fp4Rest(uint32_t low, uint32_t high) { return __byte_perm(low, high, 0x7351); }

// The eight column pairs of a row's two words of FP4 codes, times 2^-126. A sub-core issues one logic, shift or permute
// instruction per two cycles, and left shifts (as multiplications) in parallel. This needs 12 of the former; a separate
// shift for every code would need 14. kByMul: the shift to the right is also a multiplication, and each scale has its
// own. Measured, without an explanation: experts of one token take 28.9 us without kByMul and 29.5 with it; with 16 and
// 32 tokens 335 and 551 without, 321 and 539 with it.
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

// Two copies of one BF16 of a pair.
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

// Decodes the tile's codes, each row times its scale, a BF16 pair.
template <bool kByMul, typename Tile>
__device__ __forceinline__ void DecodeFp4Tile(const Tile& raw, const uint32_t (&scale)[2], uint32_t (&a)[4][4]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    uint32_t o[8];
    row == 0 ? ExpandFp4<kByMul>(raw.codes.x, raw.codes.y, o) : ExpandFp4<kByMul>(raw.codes.z, raw.codes.w, o);
#pragma unroll
    for (int pair = 0; pair < 8; ++pair) a[pair / 2][row + pair % 2 * 2] = MulBf16x2(o[pair], scale[row]);
  }
}

namespace sm90 {

// Decodes a row's 16 codes (two words of pack_weight.h) as FP16 pairs times 2^-14, times `scale`.
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

// The same as BF16 pairs times 2^-126 (see above), times `scale`.
__device__ __forceinline__ void DecodeFp4Row(uint32_t low, uint32_t high, uint32_t scale, uint32_t* a) {
  uint32_t o[8];
  ExpandFp4(low, high, o);
#pragma unroll
  for (int i = 0; i < 8; ++i) a[2 * i] = MultiplyBf16x2(o[i], scale);
}

struct RawFp4 {
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
};

}  // namespace sm90

}  // namespace dsv4
