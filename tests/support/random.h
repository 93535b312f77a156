// Random test data that is the same on every machine: no <random> distribution, no libm call.
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "base/random.h"

namespace dsv4::test {

class Random {
 public:
  explicit Random(uint64_t seed) : seed_(seed) {}

  uint64_t Bits() { return RandomBits(seed_, counter_++); }
  // In [0, n).
  int64_t Index(int64_t n) { return static_cast<int64_t>(Bits() % static_cast<uint64_t>(n)); }
  double Uniform(double low, double high) { return low + (high - low) * RandomUniform(seed_, counter_++); }
  bool Chance(double probability) { return Uniform(0, 1) < probability; }

  // Nearly normal, mean 0, variance 1, |x| <= 6: the sum of 12 uniform numbers, less 6 (Irwin-Hall).
  float Normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += Uniform(0, 1);
    return static_cast<float>(sum);
  }

  std::vector<float> Normals(int64_t n, float scale = 1) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = scale * Normal();
    return x;
  }
  std::vector<float> Uniforms(int64_t n, double low, double high) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = static_cast<float>(Uniform(low, high));
    return x;
  }

  // Finite values that rounding code may get wrong: signed zeros, subnormals, powers of two and their neighbours, one
  // outlier that determines the scale of its block, and normal numbers of mixed magnitude.
  std::vector<float> Hostiles(int64_t n) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) {
      const int exponent = static_cast<int>(Index(41)) - 24;  // 2^-24 .. 2^16
      const float power = exponent < 0 ? 1.0f / static_cast<float>(1 << -exponent) : static_cast<float>(1 << exponent);
      switch (Index(8)) {
        case 0:
          v = 0.0f;
          break;
        case 1:
          v = -0.0f;
          break;
        case 2:
          v = static_cast<float>(Index(100)) * 0x1p-149f;
          break;
        case 3:
          v = power;
          break;
        case 4:
          v = power * (1 - 0x1p-24f);
          break;
        case 5:
          v = -power * (1 + 0x1p-23f);
          break;
        default:
          v = power * Normal();
          break;
      }
    }
    if (n > 0) x[static_cast<size_t>(Index(n))] = 1000.0f * Normal();
    return x;
  }

  // A permutation of 0 .. n-1.
  std::vector<int32_t> Permutation(int64_t n) {
    std::vector<int32_t> p(static_cast<size_t>(n));
    std::iota(p.begin(), p.end(), 0);
    for (int64_t i = n - 1; i > 0; --i) std::swap(p[static_cast<size_t>(i)], p[static_cast<size_t>(Index(i + 1))]);
    return p;
  }

 private:
  uint64_t seed_;
  uint64_t counter_ = 0;
};

}  // namespace dsv4::test
