// Random weights, the same on every device: for measurements at full size without a checkpoint.
//   value[n, k] = std * g(seed, n * K + k), rounded to the tensor's format as a quantiser rounds
//   g: the sum of the 8 bytes of RandomBits, centred and scaled to unit variance (near a Gaussian; |g| <= 4.9)
// Rounding by format:
//   NVFP4   global scale std * 4.9 / (6 * 448); block scale E4M3(max|block| / 6 / global), code E2M1(value / scale)
//   MXFP4   block scale 2^ceil(log2(max|block| / 6)), code E2M1(value / scale)
//   tight   as MXFP4, with std * 1.32288 * 2^-j instead of std in each block of 32 columns; j from 0 to 6 with
//           probability 2^-(j+1). The variance is the same, and block scales cover up to nine powers of two, as in the
//           released Flash. Values too small for the least scale round to smaller codes. In NVFP4 both halves of 32
//           columns have the same scale
//   FP8     scale 2^ceil(log2(4.9 std / 448)) (E8M0 or F32), code E4M3(value / scale)
//   BF16    rounded
//   F32     unchanged
// So codes and scales have the histograms of real weights. Power and clocks depend on the histograms.
#pragma once

#include "base/random.h"
#include "ops/registry.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

inline constexpr float kFillRange = 4.9f;

// g(seed, index): 8 bytes have mean 1020 and variance 8 (256^2 - 1) / 12.
constexpr float FillValue(uint64_t seed, uint64_t index) {
  uint64_t bits = RandomBits(seed, index);
  int sum = -1020;
  for (int i = 0; i < 8; ++i, bits >>= 8) sum += static_cast<int>(bits & 255);
  return static_cast<float>(sum) * 0.0047841f;
}

struct FillWeightArgs {
  QuantTensor w;                   // kRows; its bytes are written. NVFP4: global_scale is FillGlobalScale(std)
  uint8_t* codes = nullptr;        // = w.codes
  uint8_t* block_scale = nullptr;  // = w.block_scale
  uint64_t seed = 0;
  float std = 1;
};
constexpr float FillGlobalScale(float std) { return std * kFillRange / (6.0f * 448.0f); }

inline constexpr float kFillSpread = 1.32288f;
inline constexpr int kFillSpan = 8;
// j of block `block` of a matrix.
constexpr int FillShift(uint64_t seed, uint64_t block) {
  const uint64_t bits = RandomBits(~seed, block);
  int j = 0;
  while (j < 6 && (bits >> j & 1) == 0) ++j;
  return j;
}
// The exponent_base of a tight matrix that FillWeight fills. Its largest exponent is kFillSpan more.
int FillTightBase(float std);
// Sets the fields that FillWeight needs, by format: global_scale and exponent_base.
void SetFillScales(QuantTensor* w, float std);

void FillWeight(const ExecContext& ctx, const FillWeightArgs& args);
OpImplementations DescribeFillWeight(const ExecContext& ctx);

}  // namespace dsv4
