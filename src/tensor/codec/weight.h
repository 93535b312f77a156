// The decoded value of one weight of a QuantTensor: the definition that every kernel is tested against.
#pragma once

#include "tensor/codec/bf16.h"
#include "tensor/codec/fp4.h"
#include "tensor/codec/fp8.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

// Block scale of element [n, k] of FP8 weights.
inline float Fp8BlockScale(const QuantTensor& w, int64_t n, int64_t k) {
  const int64_t i = (w.scale_row_offset + n) / kFp8BlockSize * CeilDiv(w.cols, kFp8BlockSize) + k / kFp8BlockSize;
  return w.scale_dtype == DType::kF32 ? LoadUnaligned<float>(w.block_scale, i) : E8m0ToF32(w.block_scale[i]);
}

// Block scale of element [n, k] (1 for unquantised formats), without the global scale.
inline float BlockScale(const QuantTensor& w, int64_t n, int64_t k) {
  switch (w.format) {
    case WeightFormat::kF32:
    case WeightFormat::kBf16:
      return 1.0f;
    case WeightFormat::kFp8Block:
      return Fp8BlockScale(w, n, k);
    case WeightFormat::kMxfp4:
    case WeightFormat::kMxfp4Tight:
      return E8m0ToF32(w.block_scale[n * (w.cols / kMxfp4BlockSize) + k / kMxfp4BlockSize]);
    case WeightFormat::kNvfp4:
    case WeightFormat::kNvfp4Tight:
      return E4m3ToF32(w.block_scale[n * (w.cols / kNvfp4BlockSize) + k / kNvfp4BlockSize]);
  }
  return 0.0f;
}

// Code of element [n, k] as a number, without any scale.
inline float CodeValue(const QuantTensor& w, int64_t n, int64_t k) {
  const uint8_t* row = w.codes + n * w.row_bytes();
  switch (w.format) {
    case WeightFormat::kF32:
      return LoadUnaligned<float>(row, k);
    case WeightFormat::kBf16:
      return Bf16ToF32(LoadUnaligned<uint16_t>(row, k));
    case WeightFormat::kFp8Block:
      return E4m3ToF32(row[k]);
    case WeightFormat::kMxfp4:
    case WeightFormat::kNvfp4:
    case WeightFormat::kMxfp4Tight:
    case WeightFormat::kNvfp4Tight:
      return E2m1ToF32(GetNibble(row, k));
  }
  return 0.0f;
}

inline double WeightValue(const QuantTensor& w, int64_t n, int64_t k) {
  return static_cast<double>(CodeValue(w, n, k)) * static_cast<double>(BlockScale(w, n, k)) *
         static_cast<double>(w.global_scale);
}

}  // namespace dsv4
