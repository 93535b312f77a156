// Which FP4 matrices can be kept in tight tiles (pack_weight.h): those whose scales, times the global one, are powers
// of two, one for 32 columns, of which the largest is at most 2^15 times the smallest. That holds for MXFP4 as
// released, and for NVFP4 that was cast from it. Blocks of zeros may have any scale but NaN.
#pragma once

#include <optional>

#include "ops/pack_weight/pack_weight.h"

namespace dsv4 {

inline constexpr int kTightSpan = 15;
// Of exponent_base: sums that are scaled at their end (MmaFactor) stay within float32.
inline constexpr int kLeastTightBase = -126, kMostTightBase = 98;

// The smallest exponent of a matrix in rows, MXFP4 or NVFP4; nothing if it cannot be tight. Reads the scales, and the
// codes of blocks whose scales alone would say no. Which exponents blocks of zeros count with is not told.
std::optional<int> FindTightBase(const QuantTensor& w);

// What is added to a scale's exponent for a tight tile.
inline int TightShift(const QuantTensor& w) {
  const int global = FormatOfRows(w.format) == WeightFormat::kNvfp4 ? std::ilogb(w.global_scale) : 0;
  return global - w.exponent_base;
}

}  // namespace dsv4
