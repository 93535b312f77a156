#include <cstring>

#include "ops/pack_weight/pack_weight.h"
#include "ops/pack_weight/tight.h"
#include "tensor/codec/fp8.h"

namespace dsv4 {

namespace {

// E2M1 code of W[n, k] as 4 bits; 0 outside.
uint32_t Fp4At(const PackWeightArgs& a, int64_t n, int64_t k) {
  if (n >= a.w.rows || k >= a.w.cols) return 0;
  const uint8_t byte = a.w.codes[n * RowStride(a) + k / 2];
  return k % 2 ? byte >> 4 : byte & 15;
}

uint8_t ByteAt(const PackWeightArgs& a, int64_t n, int64_t k) {
  return n < a.w.rows && k < a.w.cols ? a.w.codes[n * RowStride(a) + k] : uint8_t{0};
}

uint16_t Bf16At(const PackWeightArgs& a, int64_t n, int64_t k) {
  uint16_t v = 0;
  if (n < a.w.rows && k < a.w.cols) std::memcpy(&v, a.w.codes + n * RowStride(a) + k * 2, 2);
  return v;
}

void PackFp4Tile(const PackWeightArgs& a, int64_t n0, int64_t k0, uint8_t* tile) {
  const QuantTensor& w = a.w;
  const bool nvfp4 = FormatOfRows(w.format) == WeightFormat::kNvfp4, tight = IsTight(w.format);
  const int64_t block = InfoOf(w.format).block_cols;
  const int shift = tight ? TightShift(w) : 0;
  if (tight) std::memset(tile + 512, 0, 16);
  for (int64_t lane = 0; lane < 32; ++lane) {
    const int64_t g = lane / 4, k = k0 + 16 * (lane % 4);
    for (int64_t r = 0; r < 2; ++r) {
      const int64_t n = n0 + g + 8 * r;
      uint64_t codes = 0;
      for (int i = 0; i < 16; ++i) codes |= uint64_t{Fp4At(a, n, k + i)} << (4 * i);
      uint8_t scale = n < w.rows && k < w.cols ? w.block_scale[n * ScaleStride(a) + k / block] : uint8_t{0};
      if (nvfp4) codes = CodesUnderScale(codes, scale);
      const Fp4Words words = PlaceFp4(codes);
      std::memcpy(tile + 16 * lane + 8 * r, &words, 8);
      if (!tight) {
        tile[512 + 2 * lane + r] = nvfp4 ? static_cast<uint8_t>(TileScale(scale)) : scale;
      } else if (!AreZeros(codes)) {
        const int exponent = ScaleExponent(w.format, scale) + shift;
        DSV4_CHECK(exponent >= 0 && exponent <= kTightSpan, "exponent ", exponent, " of a tight tile");
        tile[512 + lane / 2] = static_cast<uint8_t>(tile[512 + lane / 2] | exponent << (4 * r));
      }
    }
  }
}

void PackFp8Tile(const PackWeightArgs& a, int64_t n0, int64_t k0, uint8_t* tile) {
  constexpr int64_t kOrder[4] = {0, 2, 1, 3};
  for (int64_t lane = 0; lane < 32; ++lane) {
    const int64_t g = lane / 4, t = lane % 4;
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t i = 0; i < 16; ++i) {
        tile[512 * r + 16 * lane + i] = ByteAt(a, n0 + g + 8 * r, k0 + 16 * t + i / 4 * 4 + kOrder[i % 4]);
      }
    }
  }
}

void PackBf16Tile(const PackWeightArgs& a, int64_t n0, int64_t k0, uint8_t* tile) {
  for (int64_t s = 0; s < 4; ++s) {
    for (int64_t lane = 0; lane < 32; ++lane) {
      const int64_t g = lane / 4, t = lane % 4;
      for (int64_t i = 0; i < 8; ++i) {  // pairs: (g; 0, 1), (g + 8; 0, 1), (g; 2, 3), (g + 8; 2, 3)
        const uint16_t v = Bf16At(a, n0 + g + i / 2 % 2 * 8, k0 + 16 * t + 4 * s + i / 4 * 2 + i % 2);
        std::memcpy(tile + 512 * s + 16 * lane + 2 * i, &v, 2);
      }
    }
  }
}

float Fp8Scale(const PackWeightArgs& a, int64_t n, int64_t k) {
  const QuantTensor& w = a.w;
  const uint8_t* row = w.block_scale + (w.scale_row_offset + n) / kFp8BlockSize * ScaleStride(a);
  if (w.scale_dtype == DType::kF8E8M0) return E8m0ToF32(row[k / kFp8BlockSize]);
  float scale;
  std::memcpy(&scale, row + k / kFp8BlockSize * 4, 4);
  return scale;
}

}  // namespace

void PackWeightRef(const ExecContext&, const PackWeightArgs& a) {
  const QuantTensor& w = a.w;
  uint8_t* tile = a.codes;
  for (int64_t n = 0; n < w.rows; n += kTileRows16) {
    for (int64_t k = 0; k < w.cols; k += kTileCols64, tile += TileBytes(w.format)) {
      switch (w.format) {
        case WeightFormat::kNvfp4:
        case WeightFormat::kMxfp4:
        case WeightFormat::kNvfp4Tight:
        case WeightFormat::kMxfp4Tight:
          PackFp4Tile(a, n, k, tile);
          break;
        case WeightFormat::kFp8Block:
          PackFp8Tile(a, n, k, tile);
          break;
        case WeightFormat::kBf16:
          PackBf16Tile(a, n, k, tile);
          break;
        case WeightFormat::kF32:
          break;
      }
    }
  }
  if (w.format != WeightFormat::kFp8Block) return;
  uint8_t* scale = a.block_scale;
  for (int64_t n = 0; n < w.rows; n += kTileRows16) {
    for (int64_t k = 0; k < w.cols; k += kFp8BlockSize, scale += 4) {
      const float value = Fp8Scale(a, n, k);
      std::memcpy(scale, &value, 4);
    }
  }
}

}  // namespace dsv4
