// The bytes of one cached row (docs/dev/formats.md). A row has a data part and a scale part. An array of rows stores
// all data parts first, then all scale parts, so that data parts stay aligned.
#pragma once

#include <cstdint>

#include "dsv4/types.h"

namespace dsv4 {

struct RowFormat {
  enum class Kind : uint8_t {
    kFp8,  // dim - rope_dim E4M3, rope_dim BF16; one E8M0 per 64 of the first, padded to a multiple of 8 bytes
    kFp4,  // dim E2M1 codes, two per byte; one E8M0 per 32
    kBf16,
    kF32,
  };
  Kind kind = Kind::kF32;
  int64_t dim = 0;
  int64_t rope_dim = 0;  // kFp8 only
  int64_t data_bytes = 0;
  int64_t scale_bytes = 0;

  int64_t row_bytes() const { return data_bytes + scale_bytes; }
};

inline constexpr int64_t kKvScaleBlock = 64;     // channels that share one scale in an FP8 row
inline constexpr int64_t kIndexScaleBlock = 32;  // channels that share one scale in an FP4 index key

// 448 + 2*64 + 8 = 584 bytes for the released models in FP8.
RowFormat KvRowFormat(KvDtype dtype, int64_t head_dim, int64_t rope_dim);
// 64 + 4 = 68 bytes for the released models in FP4.
RowFormat IndexKeyFormat(IndexDtype dtype, int64_t index_head_dim);

// x: f32 [dim]. DecodeRow(EncodeRow(x)) is the rounding of the format.
void EncodeRow(const RowFormat& format, const float* x, uint8_t* data, uint8_t* scale);
void DecodeRow(const RowFormat& format, const uint8_t* data, const uint8_t* scale, float* x);

// Rounds a row as the cache does: x = Decode(Encode(x)).
void RoundRow(const RowFormat& format, float* x);

// `capacity` rows at `base`.
struct RowArray {
  uint8_t* base = nullptr;
  int64_t capacity = 0;
  RowFormat format;

  uint8_t* data(int64_t row) const { return base + row * format.data_bytes; }
  uint8_t* scale(int64_t row) const { return base + capacity * format.data_bytes + row * format.scale_bytes; }
  void Write(int64_t row, const float* x) const { EncodeRow(format, x, data(row), scale(row)); }
  void Read(int64_t row, float* x) const { DecodeRow(format, data(row), scale(row), x); }
};

}  // namespace dsv4
