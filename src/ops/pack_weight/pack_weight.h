// Packs weights in the order in which tensor cores read them. Exact: nothing is rounded.
//
// W [N, K] is divided into tiles of 16 rows x 64 columns; rows and columns past the end are zeros. Tile (r, c) has
// number r * ceil(K/64) + c, so the tiles of one row of tiles are contiguous along K. In a tile, lane L = 4 g + t of a
// warp (g < 8, t < 4) owns rows g and g + 8, columns 16 t .. 16 t + 15.
//
// Step s < 4 of a tile multiplies columns 16 t + 4 s + {0, 1, 2, 3} of each t. It is an mma.m16n8k16 (or one warp's
// part of wgmma m64nNk16) whose k slots {2t, 2t+1, 2t+8, 2t+9} are these columns. So its other operand has four
// neighbouring columns for each t.
//
//   FP4   576 bytes. Byte 16 L ..: words 0, 1 = row g, words 2, 3 = row g + 8; word j holds columns 16 t + 8 j .. + 7.
//         The low half of a word holds the even columns, the high half the odd ones. In a half, column pair m < 3 is at
//           m = 0: sign bit 15, code bits 8..6    m = 1: sign 12, code 5..3     m = 2: sign 9, code 2..0
//         (shifting left by 0, 3, 6 and masking with 0x81C0 gives w * 2^-126 as a BF16). The fourth pairs of both words
//         are in bits 14, 13, 11 and 10 of both. The upper bytes of a half of word 0 (low) and word 1 (high) form a
//         16-bit number, whose bits are
//           for word 0: sign bit 14, exponent bits 3 and 6, mantissa 5
//           for word 1: sign bit 10, exponent bits 13 and 2, mantissa 11
//         so that no shift serves only one code: a decode step of one sequence is limited by logic and shifts.
//         Byte 512 + 2 L: scales of rows g and g + 8 for the lane's 16 columns: E8M0 (MXFP4), or TileScale of E4M3
//         (NVFP4).
//   Tight FP4   528 bytes. The codes are as in FP4's tiles. Byte 512 + L / 2 belongs to two lanes, which together have
//         32 columns of a row: the exponents of row g (low nibble) and g + 8, above the matrix's exponent_base. For
//         NVFP4 the sign of a scale goes to the codes. A block of zeros has the exponent of the other block of its
//         32 columns, or 0.
//   FP8   1024 bytes. Byte 512 r + 16 L (r = 0: row g, 1: row g + 8): word s holds step s, bytes in the order of
//         columns 0, 2, 1, 3. Scales: f32 [ceil(N/16), ceil(K/128)] in block_scale.
//   BF16  2048 bytes. Byte 512 s + 16 L: step s: (row g; columns 0, 1), (g + 8; 0, 1), (g; 2, 3), (g + 8; 2, 3).
//   F32   is not packed: it stays kRows.
#pragma once

#include <cmath>

#include "ops/registry.h"
#include "ops/weight_formats/tile_formats.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

inline constexpr int64_t kTileRows16 = 16, kTileCols64 = 64;

// NVFP4's block scales in tiles: 5 exponent bits (bias 21) and 3 mantissa bits, the middle of a BF16 or FP16 number,
// without subnormals. TileScale(s) << 7 is s * 2^6 as an FP16, (TileScale(s) << 4) + 0x7000 is s * 2^118 as a BF16. It
// holds the magnitude; the sign goes to the codes. 0 (whose codes are zeros in tiles) and NaN (255) have values of
// their own.
constexpr uint32_t TileScale(uint32_t e4m3) {
  const uint32_t bits = e4m3 & 0x7Fu;
  if (bits == 0x7Fu) return 255;
  if (bits >= 8) return bits + (14u << 3);
  if (bits == 0) return 0;
  const uint32_t top = bits >= 4 ? 2 : bits >= 2 ? 1 : 0;  // subnormal: bits * 2^-9
  return (12 + top) << 3 | ((bits << (3 - top)) & 7u);
}
// The inverse of TileScale: the E4M3 magnitude.
constexpr uint32_t E4m3OfTileScale(uint32_t scale) {
  if (scale == 255) return 0x7Fu;
  if (scale == 0) return 0;
  return scale >= (15u << 3) ? scale - (14u << 3) : (8u | (scale & 7u)) >> (15 - (scale >> 3));
}

// The exponent of an FP4 block's scale byte, without the global scale; kNoExponent if the scale is not a power of two.
inline constexpr int kNoExponent = -1000;
constexpr int ScaleExponent(WeightFormat f, uint32_t scale) {
  if (FormatOfRows(f) == WeightFormat::kMxfp4) return scale == 255 ? kNoExponent : static_cast<int>(scale) - 127;
  const uint32_t bits = TileScale(scale);
  return bits == 0 || (bits & 7u) != 0 ? kNoExponent : static_cast<int>(bits >> 3) - 21;
}
constexpr bool AreZeros(uint64_t codes) { return (codes & 0x7777777777777777u) == 0; }

// The position of bit `b` (0 to 2: the magnitude, 3: the sign) of code `i` of 16 of a row, in the row's two words; word
// 1 begins at 32.
constexpr int Fp4Bit(int i, int b) {
  constexpr int kFourth[2][4] = {{13, 14, 11, 32 + 14}, {32 + 11, 10, 32 + 13, 32 + 10}};
  const int word = i / 8, pair = i % 8 / 2, half = i % 2;
  return 16 * half + (pair == 3 ? kFourth[word][b] : 32 * word + (b == 3 ? 15 : 6 + b) - 3 * pair);
}

// Converts sixteen codes of a row (column i at bits 4 i of `codes`) to the two words of a tile, and back.
struct Fp4Words {
  uint32_t low, high;
};
constexpr Fp4Words PlaceFp4(uint64_t codes) {
  uint64_t words = 0;
  for (int i = 0; i < 64; ++i) words |= (codes >> i & 1u) << Fp4Bit(i / 4, i % 4);
  return {static_cast<uint32_t>(words), static_cast<uint32_t>(words >> 32)};
}
constexpr uint64_t UnplaceFp4(uint32_t low, uint32_t high) {
  const uint64_t words = uint64_t{high} << 32 | low;
  uint64_t codes = 0;
  for (int i = 0; i < 64; ++i) codes |= (words >> Fp4Bit(i / 4, i % 4) & 1u) << i;
  return codes;
}
// The codes of a block of weights whose NVFP4 scale is `e4m3`: a negative scale flips the codes' signs, a zero scale
// makes them zeros.
constexpr uint64_t CodesUnderScale(uint64_t codes, uint32_t e4m3) {
  if ((e4m3 & 0x7Fu) == 0) return 0;
  return (e4m3 & 0x80u) != 0 ? codes ^ 0x8888888888888888u : codes;
}

// Bytes of the tiles, and of FP8's tile scales.
constexpr int64_t PackedCodeBytes(const QuantTensor& w) {
  return CeilDiv(w.rows, kTileRows16) * CeilDiv(w.cols, kTileCols64) * TileBytes(w.format);
}
constexpr int64_t PackedScaleBytes(const QuantTensor& w) {
  return HasScalesBeside(w.format) ? CeilDiv(w.rows, kTileRows16) * CeilDiv(w.cols, kFp8BlockSize) * 4 : 0;
}

struct PackWeightArgs {
  // kRows; not F32. FP8: scale_row_offset is a multiple of 16. Tight: exponent_base is FindTightBase's (tight.h), or
  // less if no exponent then exceeds 15; a slice of columns has whole pairs of 16 columns.
  QuantTensor w;
  // If w is columns of a wider matrix: the bytes from row to row of its codes and of its block scales.
  int64_t row_stride = 0, scale_stride = 0;  // 0: w is whole
  uint8_t* codes = nullptr;                  // PackedCodeBytes(w), 16-byte aligned
  uint8_t* block_scale = nullptr;            // PackedScaleBytes(w), 4-byte aligned
};
void PackWeight(const ExecContext& ctx, const PackWeightArgs& args);
OpImplementations DescribePackWeight(const ExecContext& ctx);

inline int64_t RowStride(const PackWeightArgs& a) { return a.row_stride > 0 ? a.row_stride : a.w.row_bytes(); }
inline int64_t ScaleStride(const PackWeightArgs& a) {
  return a.scale_stride > 0 ? a.scale_stride : FileScaleRowBytes(a.w);
}

// The matrix that PackWeight writes.
inline QuantTensor PackedView(const PackWeightArgs& a) {
  QuantTensor p = a.w;
  p.codes = a.codes;
  p.block_scale = a.block_scale;
  p.scale_dtype = DType::kF32;
  p.scale_row_offset = 0;
  p.layout = WeightLayout::kTiles;
  if (IsTight(p.format)) p.global_scale = std::ldexp(1.0f, p.exponent_base);
  return p;
}

}  // namespace dsv4
