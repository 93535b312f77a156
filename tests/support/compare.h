// Comparisons of float arrays, with messages that name the worst place. A NaN equals a NaN and nothing else.
//   BitEqual           same bits (every NaN counts as the same NaN; +0 and -0 differ)
//   Near               |got - want| <= absolute + relative * |want|, element by element
//   WithinBounds       |got - want| <= bound[i]: bounds derived per element
//   RelativeRmsWithin  sqrt(sum (got - want)^2 / sum want^2) <= limit
// docs/dev/numerics.md derives the tolerances.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>

#include <gtest/gtest.h>

#include "base/str.h"

namespace dsv4::test {

inline constexpr double kUnitRoundoff = 0x1p-24;  // u of float32, rounding to nearest

// gamma_n = n u / (1 - n u): bounds the relative error of n float32 roundings in a row, whatever their order.
constexpr double Gamma(int64_t n) {
  const double nu = static_cast<double>(n) * kUnitRoundoff;
  return nu / (1 - nu);
}

inline std::string Spell(double x) { return StrCat(x); }

namespace internal {

// Checks sizes, then `ok(i, got, want)` for every element that is not NaN on both sides; reports the worst element.
template <typename Got, typename Want, typename Ok>
::testing::AssertionResult CompareEach(const Got& got, const Want& want, const char* what, const Ok& ok) {
  if (std::size(got) != std::size(want)) {
    return ::testing::AssertionFailure() << "sizes differ: got " << std::size(got) << ", want " << std::size(want);
  }
  int64_t failures = 0;
  size_t worst = 0;
  double worst_difference = -1;
  for (size_t i = 0; i < std::size(got); ++i) {
    const double g = static_cast<double>(got[i]), w = static_cast<double>(want[i]);
    if (std::isnan(g) && std::isnan(w)) continue;
    if (!std::isnan(g) && !std::isnan(w) && ok(i, g, w)) continue;
    ++failures;
    const double difference = std::isnan(g) || std::isnan(w) ? HUGE_VAL : std::fabs(g - w);
    if (difference > worst_difference) {
      worst_difference = difference;
      worst = i;
    }
  }
  if (failures == 0) return ::testing::AssertionSuccess();
  const double g = static_cast<double>(got[worst]), w = static_cast<double>(want[worst]);
  return ::testing::AssertionFailure() << what << ": " << failures << " of " << std::size(got) << " differ; worst at ["
                                       << worst << "]: got " << Spell(g) << ", want " << Spell(w) << ", difference "
                                       << Spell(g - w);
}

}  // namespace internal

// `got` and `want`: vectors, spans or arrays of float (want may be double).
template <typename Got, typename Want>
::testing::AssertionResult BitEqual(const Got& got, const Want& want) {
  return internal::CompareEach(got, want, "not bit-identical", [&](size_t i, double, double) {
    return std::bit_cast<uint32_t>(static_cast<float>(got[i])) ==
               std::bit_cast<uint32_t>(static_cast<float>(want[i])) &&
           static_cast<double>(static_cast<float>(want[i])) == static_cast<double>(want[i]);
  });
}

template <typename Got, typename Want>
::testing::AssertionResult Near(const Got& got, const Want& want, double absolute, double relative = 0) {
  const std::string what = StrCat("beyond ", absolute, " + ", relative, " |want|");
  return internal::CompareEach(got, want, what.c_str(), [&](size_t, double g, double w) {
    return g == w || std::fabs(g - w) <= absolute + relative * std::fabs(w);  // g == w: infinities
  });
}

template <typename Got, typename Want>
::testing::AssertionResult WithinBounds(const Got& got, const Want& want, std::span<const double> bounds) {
  if (bounds.size() != std::size(want)) return ::testing::AssertionFailure() << bounds.size() << " bounds";
  return internal::CompareEach(got, want, "beyond the derived bound",
                               [&](size_t i, double g, double w) { return g == w || std::fabs(g - w) <= bounds[i]; });
}

template <typename Got, typename Want>
::testing::AssertionResult RelativeRmsWithin(const Got& got, const Want& want, double limit) {
  const ::testing::AssertionResult masks = internal::CompareEach(
      got, want, "NaN or infinity masks",
      [](size_t, double g, double w) { return std::isfinite(g) == std::isfinite(w); });
  if (!masks) return masks;
  double error = 0, norm = 0;
  for (size_t i = 0; i < std::size(got); ++i) {
    const double g = static_cast<double>(got[i]), w = static_cast<double>(want[i]);
    if (!std::isfinite(w)) continue;
    error += (g - w) * (g - w);
    norm += w * w;
  }
  const double rms = norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
  if (rms <= limit) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "relative RMS difference " << Spell(rms) << ", limit " << Spell(limit);
}

}  // namespace dsv4::test
