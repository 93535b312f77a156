// QuantTensor: a weight matrix [N, K] in the format of its file: codes, block scales and global scale as one object.
// value[n, k] = code[n, k] * block_scale[n, k] * global_scale (docs/model.md; docs/formats.md).
// Pointers lead into a mapped file and may be unaligned: read elements of more than one byte with memcpy.
#pragma once

#include <cstdint>
#include <string_view>

#include "tensor/dtype.h"

namespace dsv4 {

enum class WeightFormat : uint8_t {
  kF32,       // codes: f32 [N, K]
  kBf16,      // codes: bf16 [N, K]
  kFp8Block,  // codes: E4M3 [N, K]; block_scale [ceil(N/128), ceil(K/128)] E8M0 or F32
  kMxfp4,     // codes: E2M1 [N, K/2] bytes, low nibble = even k; block_scale [N, K/32] E8M0
  kNvfp4,     // codes: E2M1 [N, K/2] bytes, low nibble = even k; block_scale [N, K/16] E4M3; global_scale
};

constexpr std::string_view NameOf(WeightFormat f) {
  switch (f) {
    case WeightFormat::kF32: return "F32";
    case WeightFormat::kBf16: return "BF16";
    case WeightFormat::kFp8Block: return "FP8-128x128";
    case WeightFormat::kMxfp4: return "MXFP4";
    case WeightFormat::kNvfp4: return "NVFP4";
  }
  return "?";
}

// How the elements lie in memory.
//   kRows   as in the file, see WeightFormat
//   kTiles  for tensor cores, made by PackWeight (src/ops/pack_weight/pack_weight.h has the layout)
enum class WeightLayout : uint8_t { kRows, kTiles };

inline constexpr int64_t kFp8BlockSize = 128;  // rows and columns that share one scale
inline constexpr int64_t kMxfp4BlockSize = 32;
inline constexpr int64_t kNvfp4BlockSize = 16;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct QuantTensor {
  WeightFormat format = WeightFormat::kF32;
  int64_t rows = 0;                      // N
  int64_t cols = 0;                      // K
  const uint8_t* codes = nullptr;
  const uint8_t* block_scale = nullptr;  // null for kF32 and kBf16
  DType scale_dtype = DType::kF32;       // kFp8Block only: kF8E8M0 or kF32
  int64_t scale_row_offset = 0;          // kFp8Block only: row 0 of this view is row `scale_row_offset` of the scale grid's tensor
  float global_scale = 1.0f;             // kNvfp4 only (`weight_scale_2`), else 1
  WeightLayout layout = WeightLayout::kRows;

  explicit operator bool() const { return codes != nullptr; }

  int64_t row_bytes() const {  // of the codes
    switch (format) {
      case WeightFormat::kF32: return cols * 4;
      case WeightFormat::kBf16: return cols * 2;
      case WeightFormat::kFp8Block: return cols;
      case WeightFormat::kMxfp4:
      case WeightFormat::kNvfp4: return cols / 2;
    }
    return 0;
  }
  bool quantised() const { return format != WeightFormat::kF32 && format != WeightFormat::kBf16; }
};

// Block scales as they lie in files: bytes of one row (FP4), or of one row of the grid (FP8).
constexpr int64_t FileScaleRowBytes(const QuantTensor& m) {
  switch (m.format) {
    case WeightFormat::kNvfp4: return m.cols / kNvfp4BlockSize;
    case WeightFormat::kMxfp4: return m.cols / kMxfp4BlockSize;
    case WeightFormat::kFp8Block: return CeilDiv(m.cols, kFp8BlockSize) * SizeOf(m.scale_dtype);
    default: return 0;
  }
}
// Of all rows, the first of which is the first of its scales.
constexpr int64_t FileScaleBytes(const QuantTensor& m) {
  return (m.format == WeightFormat::kFp8Block ? CeilDiv(m.rows, kFp8BlockSize) : m.rows) * FileScaleRowBytes(m);
}
inline int64_t FileBytes(const QuantTensor& m) { return m.rows * m.row_bytes() + FileScaleBytes(m); }

}  // namespace dsv4
