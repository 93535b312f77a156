#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/thread_pool.h"
#include "ops/fill_weight/fill_weight.h"
#include "tensor/codec/bf16.h"
#include "tensor/codec/fp4.h"
#include "tensor/codec/fp8.h"

namespace dsv4 {

namespace {

constexpr int64_t kMostFp4Block = 32;

// Fills one block of FP4 codes at row n, columns k ..; `scale` is its scale byte.
void FillFp4Block(const FillWeightArgs& a, int64_t n, int64_t k, int64_t block, uint8_t* scale) {
  float x[kMostFp4Block], largest = 0;
  for (int64_t i = 0; i < block; ++i) {
    x[i] = a.std * FillValue(a.seed, static_cast<uint64_t>(n * a.w.cols + k + i));
    largest = std::max(largest, std::fabs(x[i]));
  }
  float unit;
  if (InfoOf(a.w.format).scale == DType::kF8E4M3) {
    *scale = F32ToE4m3(largest / 6.0f / a.w.global_scale);
    unit = E4m3ToF32(*scale) * a.w.global_scale;
  } else {
    const int exponent = CeilLog2(std::max(largest / 6.0f, 0x1p-100f));
    *scale = E8m0FromExponent(exponent);
    unit = Exp2Int(exponent);
  }
  for (int64_t i = 0; i < block; i += 2) {
    const uint8_t low = F32ToE2m1(x[i] / unit), high = F32ToE2m1(x[i + 1] / unit);
    a.codes[n * a.w.row_bytes() + (k + i) / 2] = static_cast<uint8_t>(low | high << 4);
  }
}

// The same for a tight format, 32 columns.
void FillTightBlock(const FillWeightArgs& a, int64_t n, int64_t k) {
  const int64_t first = n * a.w.cols + k;
  const float std = a.std * kFillSpread * Exp2Int(-FillShift(a.seed, static_cast<uint64_t>(first / kMxfp4BlockSize)));
  float x[kMostFp4Block], largest = 0;
  for (int64_t i = 0; i < kMxfp4BlockSize; ++i) {
    x[i] = std * FillValue(a.seed, static_cast<uint64_t>(first + i));
    largest = std::max(largest, std::fabs(x[i]));
  }
  const int exponent = std::max(CeilLog2(std::max(largest / 6.0f, 0x1p-100f)), int{a.w.exponent_base});
  if (InfoOf(a.w.format).global_scale) {
    a.block_scale[first / 16] = a.block_scale[first / 16 + 1] = F32ToE4m3(Exp2Int(exponent - a.w.exponent_base));
  } else {
    a.block_scale[first / 32] = E8m0FromExponent(exponent);
  }
  for (int64_t i = 0; i < kMxfp4BlockSize; i += 2) {
    const uint8_t low = F32ToE2m1(x[i] / Exp2Int(exponent)), high = F32ToE2m1(x[i + 1] / Exp2Int(exponent));
    a.codes[(first + i) / 2] = static_cast<uint8_t>(low | high << 4);
  }
}

}  // namespace

void FillWeightRef(const ExecContext& ctx, const FillWeightArgs& a) {
  const QuantTensor& w = a.w;
  const int fp8_exponent = CeilLog2(a.std * kFillRange / kE4m3Max);
  ParallelFor(ctx.pool, w.rows, /*grain=*/1, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) {
      if (IsTight(w.format)) {
        for (int64_t k = 0; k < w.cols; k += kMxfp4BlockSize) FillTightBlock(a, n, k);
        continue;
      }
      if (InfoOf(w.format).packed()) {
        const int64_t block = InfoOf(w.format).block_cols;
        for (int64_t k = 0; k < w.cols; k += block) {
          FillFp4Block(a, n, k, block, a.block_scale + n * (w.cols / block) + k / block);
        }
        continue;
      }
      for (int64_t k = 0; k < w.cols; ++k) {
        const int64_t at = n * w.cols + k;
        const float x = a.std * FillValue(a.seed, static_cast<uint64_t>(at));
        const uint16_t half = F32ToBf16(x);
        switch (w.format) {
          case WeightFormat::kFp8Block:
            a.codes[at] = F32ToE4m3(x * Exp2Int(-fp8_exponent));
            break;
          case WeightFormat::kBf16:
            std::memcpy(a.codes + 2 * at, &half, 2);
            break;
          default:
            std::memcpy(a.codes + 4 * at, &x, 4);
            break;
        }
      }
    }
  });
  if (w.format != WeightFormat::kFp8Block) return;
  const float scale = Exp2Int(fp8_exponent);
  const int64_t num_scales = CeilDiv(w.rows, kFp8BlockSize) * CeilDiv(w.cols, kFp8BlockSize);
  for (int64_t i = 0; i < num_scales; ++i) {
    if (w.scale_dtype == DType::kF8E8M0) {
      a.block_scale[i] = E8m0FromExponent(fp8_exponent);
    } else {
      std::memcpy(a.block_scale + 4 * i, &scale, 4);
    }
  }
}

}  // namespace dsv4
