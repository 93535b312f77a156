// The formats of weight matrices, one row per format: the properties that files, sizes and reports need. For the
// decoded values see tensor/codec/weight.h and docs/dev/formats.md.
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
  // The same rows with known scales: powers of two, one per 32 columns, the largest at most 2^15 times the smallest
  // (except for blocks of zeros). Used for experts on a GPU, in smaller tiles. No file states it: the loader finds out.
  kMxfp4Tight,
  kNvfp4Tight,
};

inline constexpr int64_t kFp8BlockSize = 128;  // rows and columns that share one scale
inline constexpr int64_t kMxfp4BlockSize = 32;
inline constexpr int64_t kNvfp4BlockSize = 16;

struct WeightFormatInfo {
  WeightFormat format;
  std::string_view name;    // in reports
  std::string_view family;  // in messages and on the command line
  int bits;                 // of a code
  // Weights that share a scale; 0: no scales. More than one row: a grid, whose last blocks may be partial. Otherwise K
  // is a multiple of block_cols.
  int64_t block_rows = 0;
  int64_t block_cols = 0;
  DType codes = DType::kF32;         // of `X.weight` in files
  DType scale = DType::kF32;         // of its block scales
  bool f32_scale = false;            // or F32
  std::string_view scale_name = {};  // suffix of X; for other names that are read see bind_tensors.cc
  bool global_scale = false;         // `X.weight_scale_2`, F32

  constexpr bool quantised() const { return block_cols != 0; }
  constexpr bool grid() const { return block_rows > 1; }
  constexpr bool packed() const { return bits < 8; }  // two codes per byte
};

inline constexpr WeightFormatInfo kWeightFormats[] = {
    {.format = WeightFormat::kF32, .name = "F32", .family = "F32", .bits = 32, .codes = DType::kF32},
    {.format = WeightFormat::kBf16, .name = "BF16", .family = "BF16", .bits = 16, .codes = DType::kBf16},
    {.format = WeightFormat::kFp8Block,
     .name = "FP8-128x128",
     .family = "FP8",
     .bits = 8,
     .block_rows = kFp8BlockSize,
     .block_cols = kFp8BlockSize,
     .codes = DType::kF8E4M3,
     .scale = DType::kF8E8M0,
     .f32_scale = true,
     .scale_name = ".scale"},
    {.format = WeightFormat::kMxfp4,
     .name = "MXFP4",
     .family = "MXFP4",
     .bits = 4,
     .block_rows = 1,
     .block_cols = kMxfp4BlockSize,
     .codes = DType::kI8,
     .scale = DType::kF8E8M0,
     .scale_name = ".scale"},
    {.format = WeightFormat::kNvfp4,
     .name = "NVFP4",
     .family = "NVFP4",
     .bits = 4,
     .block_rows = 1,
     .block_cols = kNvfp4BlockSize,
     .codes = DType::kU8,
     .scale = DType::kF8E4M3,
     .scale_name = ".weight_scale",
     .global_scale = true},
    {.format = WeightFormat::kMxfp4Tight,
     .name = "MXFP4-tight",
     .family = "MXFP4",
     .bits = 4,
     .block_rows = 1,
     .block_cols = kMxfp4BlockSize,
     .codes = DType::kI8,
     .scale = DType::kF8E8M0,
     .scale_name = ".scale"},
    {.format = WeightFormat::kNvfp4Tight,
     .name = "NVFP4-tight",
     .family = "NVFP4",
     .bits = 4,
     .block_rows = 1,
     .block_cols = kNvfp4BlockSize,
     .codes = DType::kU8,
     .scale = DType::kF8E4M3,
     .scale_name = ".weight_scale",
     .global_scale = true},
};

// kWeightFormats has the order of the enum.
constexpr const WeightFormatInfo& InfoOf(WeightFormat f) { return kWeightFormats[static_cast<size_t>(f)]; }
constexpr std::string_view NameOf(WeightFormat f) { return InfoOf(f).name; }

// A tight format and its wide format have the same rows.
constexpr bool IsTight(WeightFormat f) { return f == WeightFormat::kMxfp4Tight || f == WeightFormat::kNvfp4Tight; }
constexpr WeightFormat FormatOfRows(WeightFormat f) {
  return f == WeightFormat::kMxfp4Tight   ? WeightFormat::kMxfp4
         : f == WeightFormat::kNvfp4Tight ? WeightFormat::kNvfp4
                                          : f;
}
constexpr WeightFormat TightOf(WeightFormat f) {
  return f == WeightFormat::kMxfp4   ? WeightFormat::kMxfp4Tight
         : f == WeightFormat::kNvfp4 ? WeightFormat::kNvfp4Tight
                                     : f;
}

}  // namespace dsv4
