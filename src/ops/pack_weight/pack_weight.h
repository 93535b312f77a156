// Weights in the order in which tensor cores take them: exact, nothing is rounded.
//
// W [N, K] is cut into tiles of 16 rows x 64 columns; rows and columns behind the end are zeros. Tile (r, c) is number
// r * ceil(K/64) + c, so a run of K of one row tile is contiguous. In a tile lane L = 4 g + t of a warp (g < 8, t < 4)
// owns rows g and g + 8, columns 16 t .. 16 t + 15. Step s < 4 of a tile multiplies columns 16 t + 4 s + {0, 1, 2, 3} of
// each t: an mma.m16n8k16 (or one warp's part of wgmma m64nNk16) whose k slots {2t, 2t+1, 2t+8, 2t+9} mean these columns,
// so its other operand takes four neighbouring columns for each t.
//
//   FP4   576 bytes. Byte 16 L ..: words 0, 1 = row g, words 2, 3 = row g + 8; word j holds columns 16 t + 8 j .. + 7.
//         A word's low half holds the even columns, its high half the odd ones; of a half, column pair m < 4 lies at
//           m = 0: sign bit 15, code bits 8..6    m = 1: sign 12, code 5..3     m = 2: sign 9, code 2..0
//           m = 3: sign 14, exponent bits 11..10, mantissa bit 13
//         (shifting left by 0, 3, 6 and masking with 0x81C0 gives w * 2^-126 as a BF16).
//         Byte 512 + 2 L: scales of rows g and g + 8 for the lane's 16 columns: E4M3 (NVFP4) or E8M0 (MXFP4).
//   FP8   1024 bytes. Byte 512 r + 16 L (r = 0: row g, 1: row g + 8): word s holds step s, bytes in the order of columns
//         0, 2, 1, 3. Scales: f32 [ceil(N/16), ceil(K/128)] in block_scale.
//   BF16  2048 bytes. Byte 512 s + 16 L: step s: (row g; columns 0, 1), (g + 8; 0, 1), (g; 2, 3), (g + 8; 2, 3).
//   F32   is not packed: it stays kRows.
#pragma once

#include "ops/registry.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

inline constexpr int64_t kTileRows16 = 16, kTileCols64 = 64;

constexpr int64_t TileBytes(WeightFormat f) {
  switch (f) {
    case WeightFormat::kNvfp4:
    case WeightFormat::kMxfp4: return 576;
    case WeightFormat::kFp8Block: return 1024;
    case WeightFormat::kBf16: return 2048;
    case WeightFormat::kF32: return 0;
  }
  return 0;
}

// Bytes of the tiles, and of FP8's tile scales.
constexpr int64_t PackedCodeBytes(const QuantTensor& w) {
  return CeilDiv(w.rows, kTileRows16) * CeilDiv(w.cols, kTileCols64) * TileBytes(w.format);
}
constexpr int64_t PackedScaleBytes(const QuantTensor& w) {
  return w.format == WeightFormat::kFp8Block ? CeilDiv(w.rows, kTileRows16) * CeilDiv(w.cols, kFp8BlockSize) * 4 : 0;
}

struct PackWeightArgs {
  QuantTensor w;            // kRows; not F32. FP8: scale_row_offset a multiple of 16
  uint8_t* codes = nullptr;        // PackedCodeBytes(w), 16-byte aligned
  uint8_t* block_scale = nullptr;  // PackedScaleBytes(w), 4-byte aligned
};
void PackWeight(const ExecContext& ctx, const PackWeightArgs& args);
OpImplementations DescribePackWeight(const ExecContext& ctx);

// What PackWeight makes.
inline QuantTensor PackedView(const PackWeightArgs& a) {
  QuantTensor p = a.w;
  p.codes = a.codes;
  p.block_scale = a.block_scale;
  p.scale_dtype = DType::kF32;
  p.scale_row_offset = 0;
  p.layout = WeightLayout::kTiles;
  return p;
}

}  // namespace dsv4
