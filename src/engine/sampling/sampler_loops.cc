#include "engine/sampling/sampler_loops.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/sample_math.h"
#include "base/vector_clones.h"
#include "engine/sampling/wide.h"

namespace dsv4::internal {

namespace {

// As sample::Exponent.
inline void ExponentsOf(const float* logits, float largest, double inverse, Doubles& x) {
  Floats narrow;
  Load(logits, narrow);
  const Doubles logit = __builtin_convertvector(narrow, Doubles);
  const double top = largest;
  x = logit == top ? Doubles{} : (logit - top) * inverse;
}

// x = sample::ExpNonPositive(x): a fixed sequence of additions and multiplications with the same bits everywhere. The
// exp of libm rounds differently between C libraries and CPUs (it selects FMA code at run time), which can move a draw
// to the next token.
inline void ExpNonPositive(Doubles& x) {
  constexpr double kLeast = -708.0;  // e^-708 is close to the smallest normal double
  const Doubles clamped = x < kLeast ? Doubles{} + kLeast : x;
  const Doubles shifted = clamped * 1.4426950408889634 + 0x1.8p52, n = shifted - 0x1.8p52;
  const Doubles r = (clamped - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
  Doubles p = Doubles{} + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  Words bits;
  Load(&shifted, bits);
  bits = (bits + 1023) << 52;
  Doubles power;
  Load(&bits, power);
  x = x < kLeast ? Doubles{} : p * power;
}

DSV4_VECTOR_CLONES void WeighAll(const float* logits, size_t count, float largest, double inverse, double* weights) {
  size_t i = 0;
  for (; i + kWide <= count; i += kWide) {
    Doubles x;
    ExponentsOf(logits + i, largest, inverse, x);
    ExpNonPositive(x);
    std::memcpy(weights + i, &x, sizeof(x));
  }
  for (; i < count; ++i) weights[i] = sample::ExpNonPositive(sample::Exponent(logits[i], largest, inverse));
}

DSV4_VECTOR_CLONES void MassesOf(const double* weights, size_t count, uint64_t* masses) {
  for (size_t i = 0; i < count; ++i) masses[i] = sample::MassOfWeight(weights[i]);
}

DSV4_VECTOR_CLONES void BinAll(const float* logits, size_t count, float largest, double inverse, int32_t* bins) {
  constexpr double kBinsPerUnit = 32, kLast = kTopPBins - 1;
  size_t i = 0;
  for (; i + kWide <= count; i += kWide) {
    Doubles x;
    ExponentsOf(logits + i, largest, inverse, x);
    x = -x * kBinsPerUnit;
    x = x < kLast ? x : Doubles{} + kLast;
    const Ints bin = __builtin_convertvector(x, Ints);
    std::memcpy(bins + i, &bin, sizeof(bin));
  }
  for (; i < count; ++i) {
    const double distance = -sample::Exponent(logits[i], largest, inverse) * kBinsPerUnit;
    bins[i] = static_cast<int32_t>(distance < kLast ? distance : kLast);
  }
}

DSV4_VECTOR_CLONES void ClearAll(const int32_t* bins, size_t count, int32_t last, uint64_t* masses) {
  for (size_t i = 0; i < count; ++i) masses[i] = bins[i] > last ? 0 : masses[i];
}

// In a fixed number of lanes, so that the loop is vectorised.
constexpr size_t kLanes = 32;
DSV4_VECTOR_CLONES void LanesOf(const float* values, size_t count, float* lanes, int32_t* nans) {
  for (size_t i = 0; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float v = values[i + lane];
      lanes[lane] = v > lanes[lane] ? v : lanes[lane];
      nans[lane] |= v != v ? 1 : 0;
    }
  }
}

}  // namespace

float Largest(std::span<const float> values, bool* has_nan) {
  std::array<float, kLanes> lanes;
  lanes.fill(-std::numeric_limits<float>::infinity());
  std::array<int32_t, kLanes> nans{};
  LanesOf(values.data(), values.size(), lanes.data(), nans.data());
  float largest = *std::max_element(lanes.begin(), lanes.end());
  bool nan = std::any_of(nans.begin(), nans.end(), [](int32_t n) { return n != 0; });
  for (const float v : values.last(values.size() % kLanes)) {
    if (v > largest) largest = v;
    nan = nan || v != v;
  }
  *has_nan = nan;
  return largest;
}

void Softmax(std::span<const float> logits, float largest, double inverse_temperature, std::vector<double>& weights) {
  weights.resize(logits.size());
  WeighAll(logits.data(), logits.size(), largest, inverse_temperature, weights.data());
}

void Masses(const std::vector<double>& weights, std::vector<uint64_t>& masses) {
  masses.resize(weights.size());
  MassesOf(weights.data(), weights.size(), masses.data());
}

void BinsOf(std::span<const float> logits, float largest, double inverse_temperature, std::vector<int32_t>& bins) {
  bins.resize(logits.size());
  BinAll(logits.data(), logits.size(), largest, inverse_temperature, bins.data());
}

void ClearBeyond(const std::vector<int32_t>& bins, int32_t last, std::vector<uint64_t>& masses) {
  ClearAll(bins.data(), bins.size(), last, masses.data());
}

}  // namespace dsv4::internal
