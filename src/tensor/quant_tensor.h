// QuantTensor: a weight matrix [N, K] in the format of its file, with its codes, block scales and global scale.
// value[n, k] = code[n, k] * block_scale[n, k] * global_scale (docs/dev/model.md; docs/dev/formats.md). Pointers may
// point into a mapped file and be unaligned: read elements of more than one byte with memcpy.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/weight_format.h"

namespace dsv4 {

// The order of the elements in memory.
//   kRows   as in the file, see WeightFormat
//   kTiles  for tensor cores, made by PackWeight (src/ops/pack_weight/pack_weight.h has the layout)
enum class WeightLayout : uint8_t { kRows, kTiles };

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct QuantTensor {
  WeightFormat format = WeightFormat::kF32;
  int64_t rows = 0;  // N
  int64_t cols = 0;  // K
  const uint8_t* codes = nullptr;
  const uint8_t* block_scale = nullptr;  // null for kF32 and kBf16
  DType scale_dtype = DType::kF32;       // kFp8Block only: kF8E8M0 or kF32
  // kFp8Block only: row 0 of this view is row `scale_row_offset` of the tensor that has the scale grid
  int64_t scale_row_offset = 0;
  float global_scale = 1.0f;  // kNvfp4 only (`weight_scale_2`), else 1; in tight tiles 2^exponent_base
  WeightLayout layout = WeightLayout::kRows;
  int16_t exponent_base = 0;  // tight formats only: the weights of a block are code * 2^(exponent_base + 0 .. 15)

  explicit operator bool() const { return codes != nullptr; }

  int64_t row_bytes() const { return cols * InfoOf(format).bits / 8; }  // of the codes
  bool quantised() const { return InfoOf(format).quantised(); }
};

// Bytes of one row of block scales, as files store them.
constexpr int64_t FileScaleRowBytes(const QuantTensor& m) {
  const WeightFormatInfo& f = InfoOf(m.format);
  return f.quantised() ? CeilDiv(m.cols, f.block_cols) * (f.grid() ? SizeOf(m.scale_dtype) : SizeOf(f.scale)) : 0;
}
// Bytes of all rows of block scales. Requires: the matrix begins at the first row of its scales.
constexpr int64_t FileScaleBytes(const QuantTensor& m) {
  return InfoOf(m.format).quantised() ? CeilDiv(m.rows, InfoOf(m.format).block_rows) * FileScaleRowBytes(m) : 0;
}
inline int64_t FileBytes(const QuantTensor& m) { return m.rows * m.row_bytes() + FileScaleBytes(m); }

}  // namespace dsv4
