// Random numbers that are the same on every machine: a counter-based generator. <random> is not used, because its
// distributions differ between standard libraries.
#pragma once

#include <cstdint>

namespace dsv4 {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection on 64 bits in which every input bit reaches
// every output bit.
constexpr uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Word `counter` of the stream `seed`. There is no state, so any word can be computed alone.
constexpr uint64_t RandomBits(uint64_t seed, uint64_t counter) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  return MixBits(MixBits(seed + kGolden) + kGolden * (counter + 1));
}

// In [0, 1), a multiple of 2^-53.
constexpr double RandomUniform(uint64_t seed, uint64_t counter) {
  return static_cast<double>(RandomBits(seed, counter) >> 11) * 0x1p-53;
}

}  // namespace dsv4
