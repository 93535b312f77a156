// exp for the sampler, two values at a time. libm's exp rounds differently between C libraries and CPUs (it selects FMA
// code at run time), which can move a draw to the next token. This one is a fixed sequence of IEEE additions and
// multiplications, so it has the same bits everywhere.
#pragma once

#include <bit>
#include <cstdint>

namespace dsv4::internal {

// Two values fill a register of every processor with vectors.
typedef double Double2 __attribute__((vector_size(16)));
typedef uint64_t Bits2 __attribute__((vector_size(16)));

// e^x for x <= 0, relative error below 2e-15; exactly 0 below -708 (e^-708 is close to the smallest normal double). The
// same bits as sample::ExpNonPositive (base/sample_math.h).
inline Double2 ExpNonPositive(Double2 x) {
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kLn2High = 6.93147180369123816490e-01;  // 32 significant bits: n * kLn2High is exact
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  constexpr double kRound = 0x1.8p52;  // adding it rounds to an integer in the low bits
  const Double2 clamped = x < -708.0 ? Double2{} - 708.0 : x;
  const Double2 shifted = clamped * kLog2E + kRound;
  const Double2 n = shifted - kRound;
  const Double2 r = (clamped - n * kLn2High) - n * kLn2Low;  // |r| <= ln2 / 2
  Double2 p = Double2{} + 1.0 / 479001600;                   // Taylor to r^12: the next term is below 2e-16
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
  const Bits2 exponent = (std::bit_cast<Bits2>(shifted) + 1023) << 52;
  return x < -708.0 ? Double2{} : p * std::bit_cast<Double2>(exponent);
}

}  // namespace dsv4::internal
