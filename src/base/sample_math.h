// The arithmetic of sampling (ops/sample/sample.h): float64 operations that no compiler fuses, so that a CPU and a GPU
// compute the same bits. engine/sampling/sampler_loops.cc has the exponential of eight values at once.
#pragma once

#include <bit>
#include <cstdint>

#include "base/host_device.h"
#include "base/random.h"

namespace dsv4::sample {

inline constexpr double kMassUnit = 0x1p46;

#ifdef __CUDA_ARCH__
DSV4_HOST_DEVICE double Add(double a, double b) { return __dadd_rn(a, b); }
DSV4_HOST_DEVICE double Multiply(double a, double b) { return __dmul_rn(a, b); }
DSV4_HOST_DEVICE double Divide(double a, double b) { return __ddiv_rn(a, b); }
DSV4_HOST_DEVICE uint64_t Bits(double x) { return static_cast<uint64_t>(__double_as_longlong(x)); }
DSV4_HOST_DEVICE double FromBits(uint64_t x) { return __longlong_as_double(static_cast<long long>(x)); }
DSV4_HOST_DEVICE uint32_t Bits(float x) { return __float_as_uint(x); }
DSV4_HOST_DEVICE float FromBits(uint32_t x) { return __uint_as_float(x); }
#else
DSV4_HOST_DEVICE double Add(double a, double b) { return a + b; }
DSV4_HOST_DEVICE double Multiply(double a, double b) { return a * b; }
DSV4_HOST_DEVICE double Divide(double a, double b) { return a / b; }
DSV4_HOST_DEVICE uint64_t Bits(double x) { return std::bit_cast<uint64_t>(x); }
DSV4_HOST_DEVICE double FromBits(uint64_t x) { return std::bit_cast<double>(x); }
DSV4_HOST_DEVICE uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }
DSV4_HOST_DEVICE float FromBits(uint32_t x) { return std::bit_cast<float>(x); }
#endif

// e^x for x <= 0, relative error below 2e-15; exactly 0 below -708. Taylor series to r^12 of r = x - n ln 2.
DSV4_HOST_DEVICE double ExpNonPositive(double x) {
  if (x < -708.0) return 0.0;
  const double shifted = Add(Multiply(x, 1.4426950408889634), 0x1.8p52);
  const double n = Add(shifted, -0x1.8p52);
  const double r = Add(Add(x, -Multiply(n, 6.93147180369123816490e-01)), -Multiply(n, 1.90821492927058770002e-10));
  double p = 1.0 / 479001600;
  p = Add(Multiply(p, r), 1.0 / 39916800);
  p = Add(Multiply(p, r), 1.0 / 3628800);
  p = Add(Multiply(p, r), 1.0 / 362880);
  p = Add(Multiply(p, r), 1.0 / 40320);
  p = Add(Multiply(p, r), 1.0 / 5040);
  p = Add(Multiply(p, r), 1.0 / 720);
  p = Add(Multiply(p, r), 1.0 / 120);
  p = Add(Multiply(p, r), 1.0 / 24);
  p = Add(Multiply(p, r), 1.0 / 6);
  p = Add(Multiply(p, r), 0.5);
  p = Add(Multiply(p, r), 1.0);
  p = Add(Multiply(p, r), 1.0);
  return Multiply(p, FromBits((Bits(shifted) + 1023) << 52));
}

// ln(weight) of a logit relative to the largest one. If the largest logit is infinite, all infinite logits share the
// mass.
DSV4_HOST_DEVICE double Exponent(float logit, float largest, double inverse_temperature) {
  if (logit == largest) return 0.0;
  return Multiply(Add(static_cast<double>(logit), -static_cast<double>(largest)), inverse_temperature);
}

// round(2^46 weight), weight = ExpNonPositive(exponent) in [0, 1].
DSV4_HOST_DEVICE uint64_t MassOfWeight(double weight) {
  return Bits(Add(Multiply(weight, kMassUnit), 0x1p52)) & 0xFFFFFFFFFFFFFu;  // rounds to a whole number
}
DSV4_HOST_DEVICE uint64_t Mass(double exponent) {
  if (!(exponent > -33.0)) return 0;  // 2^46 e^-33 < 1/2
  return MassOfWeight(ExpNonPositive(exponent));
}

// -ln(x) for x in [2^-53, 1], relative error below 1e-15: x = m 2^e with m in [sqrt(1/2), sqrt(2)), and the series of
// ln m = 2 artanh s, s = (m - 1) / (m + 1), to s^21.
DSV4_HOST_DEVICE double NegativeLog(double x) {
  constexpr uint64_t kRootOfHalf = 0x3FE6A09E667F3BCDu;
  const int64_t e = static_cast<int64_t>(Bits(x) - kRootOfHalf) >> 52;
  const double m = FromBits(Bits(x) - (static_cast<uint64_t>(e) << 52)), n = static_cast<double>(e);
  const double s = Divide(Add(m, -1.0), Add(m, 1.0)), z = Multiply(s, s);
  double p = 1.0 / 21;
  p = Add(Multiply(p, z), 1.0 / 19);
  p = Add(Multiply(p, z), 1.0 / 17);
  p = Add(Multiply(p, z), 1.0 / 15);
  p = Add(Multiply(p, z), 1.0 / 13);
  p = Add(Multiply(p, z), 1.0 / 11);
  p = Add(Multiply(p, z), 1.0 / 9);
  p = Add(Multiply(p, z), 1.0 / 7);
  p = Add(Multiply(p, z), 1.0 / 5);
  p = Add(Multiply(p, z), 1.0 / 3);
  p = Add(Multiply(p, z), 1.0);
  const double of_m = Multiply(Multiply(2.0, s), p);
  // not -(sum): for x = 1 that would be -0, which has other bits than 0
  return Add(0.0, -Add(Multiply(n, 6.93147180369123816490e-01), Add(Multiply(n, 1.90821492927058770002e-10), of_m)));
}

// The draw is a race. A token's time is E / mass, where E is exponentially distributed; the smallest time wins. So a
// token wins with probability mass / (sum of masses). E depends only on the draw's number and the token's id: equal
// distributions give equal draws for one number.
DSV4_HOST_DEVICE double UniformOfRace(uint64_t draw, int32_t id) {  // in (0, 1]
  return Multiply(static_cast<double>((RandomBits(draw, static_cast<uint64_t>(id)) >> 11) + 1), 0x1p-53);
}
DSV4_HOST_DEVICE double RaceTime(double uniform, uint64_t mass) {
  return Divide(NegativeLog(uniform), static_cast<double>(mass));
}

// Larger for the token that comes first: the larger logit, then the lower id. +0 and -0 are equal.
DSV4_HOST_DEVICE uint32_t KeyOf(float logit) {
  const uint32_t bits = Bits(logit + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
DSV4_HOST_DEVICE float LogitOf(uint32_t key) { return FromBits(key & 0x80000000u ? key ^ 0x80000000u : ~key); }
DSV4_HOST_DEVICE uint64_t RankOf(float logit, int32_t id) {
  return static_cast<uint64_t>(KeyOf(logit)) << 32 | static_cast<uint32_t>(~id);
}
DSV4_HOST_DEVICE int32_t IdOf(uint64_t rank) { return static_cast<int32_t>(~static_cast<uint32_t>(rank)); }

DSV4_HOST_DEVICE float AddBias(float logit, float bias) {
  const float minus_infinity = FromBits(0xFF800000u);
  if (bias == minus_infinity || logit == minus_infinity)
    return minus_infinity;  // also for +inf, for which the sum would be NaN
  return logit + bias;
}

// For a token that occurred before; `outputs`: how often in the output.
DSV4_HOST_DEVICE float Penalise(float value, float repeat, float presence, float frequency, int outputs) {
  double logit = value;
  logit = logit > 0 ? logit / static_cast<double>(repeat) : Multiply(logit, static_cast<double>(repeat));
  if (outputs > 0) {
    logit = Add(logit, -static_cast<double>(presence));
    logit = Add(logit, -Multiply(static_cast<double>(frequency), static_cast<double>(outputs)));
  }
  return static_cast<float>(logit);
}

// Whether weight e^exponent, with this mass, is below min_p > 0. Uses the mass if its error cannot change the answer.
DSV4_HOST_DEVICE bool IsBelowMinP(uint64_t mass, double exponent, float min_p) {
  const double limit = Multiply(static_cast<double>(min_p), kMassUnit), m = static_cast<double>(mass);
  if (m > limit + 2) return false;
  if (m < limit - 2) return true;
  return ExpNonPositive(exponent) < static_cast<double>(min_p);
}

// Whether top-p removes a token; `before`: the mass of all tokens before it.
DSV4_HOST_DEVICE bool ReachesTopP(uint64_t before, double wanted) { return static_cast<double>(before) >= wanted; }
DSV4_HOST_DEVICE double WantedMass(float top_p, uint64_t total) {
  return Multiply(static_cast<double>(top_p), static_cast<double>(total));
}

}  // namespace dsv4::sample
