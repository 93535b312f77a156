// Finds the FP4 matrices that can be stored in tight tiles (pack_weight.h). Their scales, times the global scale, must
// be powers of two, one per 32 columns, and the largest at most 2^15 times the smallest. That holds for MXFP4 as
// released, and for NVFP4 that was converted from it. Blocks of zeros may have any scale except NaN.
#pragma once

#include <optional>

#include "ops/pack_weight/pack_weight.h"

namespace dsv4 {

inline constexpr int kTightSpan = 15;
// Limits of exponent_base: sums that are scaled at the end (MmaFactor) stay within float32.
inline constexpr int kLeastTightBase = -126, kMostTightBase = 98;

// Returns the smallest exponent of a matrix in rows, MXFP4 or NVFP4; nullopt if it cannot be tight. Reads the scales,
// and the codes of blocks whose scales alone would exclude the matrix. It is unspecified whether the exponents of
// blocks of zeros count.
std::optional<int> FindTightBase(const QuantTensor& w);

// The number that is added to a scale's exponent for a tight tile.
inline int TightShift(const QuantTensor& w) {
  const int global = FormatOfRows(w.format) == WeightFormat::kNvfp4 ? std::ilogb(w.global_scale) : 0;
  return global - w.exponent_base;
}

}  // namespace dsv4
