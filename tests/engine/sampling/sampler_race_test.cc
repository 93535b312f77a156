#include "engine/sampling/sampler_race.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/random.h"
#include "base/sample_math.h"
#include "gtest/gtest.h"

namespace dsv4::internal {
namespace {

// Computes the time of every token, one after the other.
TokenId Slowly(std::span<const uint64_t> masses, std::span<const TokenId> ids, uint64_t draw) {
  double least = std::numeric_limits<double>::infinity();
  TokenId winner = -1;
  for (size_t i = 0; i < masses.size(); ++i) {
    const TokenId id = ids.empty() ? static_cast<TokenId>(i) : ids[i];
    if (masses[i] == 0) continue;
    const double time = sample::RaceTime(sample::UniformOfRace(draw, id), masses[i]);
    if (time < least || (time == least && id < winner)) least = time, winner = id;
  }
  return winner;
}

uint64_t Word(uint64_t seed, uint64_t at) { return RandomBits(seed, at); }

TEST(SamplerRace, HasTheWinnerOfAllTimes) {
  for (uint64_t draw = 0; draw < 3000; ++draw) {
    const size_t size = Word(1, draw) % 400;
    std::vector<uint64_t> masses(size);
    // From one token with nearly all mass to equal tokens. Some have no mass; in some draws whole blocks have none.
    const uint64_t shift = Word(2, draw) % 47, none = Word(3, draw) % 4;
    for (size_t i = 0; i < size; ++i) {
      masses[i] = (Word(draw, i) >> 18 >> (Word(draw, i + size) % (shift + 1))) + 1;
      if (none == 1 && i % 3 == 0) masses[i] = 0;
      if (none == 2 && i / 64 % 2 == 0) masses[i] = 0;
    }
    if (none == 3 && size > 0) masses[draw % size] = uint64_t{1} << 46;
    EXPECT_EQ(Race(masses, {}, draw), Slowly(masses, {}, draw)) << size << " draw " << draw;
    std::vector<TokenId> ids(size);
    for (size_t i = 0; i < size; ++i) ids[i] = static_cast<TokenId>((i * 7919 + draw) % 100003);
    EXPECT_EQ(Race(masses, ids, draw), Slowly(masses, ids, draw)) << size << " ids, draw " << draw;
  }
}

// Flat, peaked, rising and falling logits, some of them -inf or infinite, at temperatures from tiny to huge.
TEST(SamplerRace, OfLogitsHasTheWinnerOfTheirMasses) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (uint64_t draw = 0; draw < 3000; ++draw) {
    const size_t size = 1 + Word(1, draw) % 700;
    const double spread = std::exp2(static_cast<double>(Word(2, draw) % 14) - 6), temperature = (draw % 7 + 1) * 0.2;
    std::vector<float> logits(size);
    for (size_t i = 0; i < size; ++i) {
      const double slope = draw % 3 == 0 ? 0.0 : draw % 3 == 1 ? 0.05 : -0.05;
      logits[i] = static_cast<float>(spread * RandomUniform(draw, i) + slope * static_cast<double>(i));
      if (draw % 11 == 0 && i % 3 == 0) logits[i] = -kInfinity;
    }
    if (draw % 13 == 0) logits[size / 2] = 40;
    if (draw % 101 == 0) logits[size / 3] = kInfinity;
    const double inverse = draw % 97 == 0 ? 1e38 : draw % 89 == 0 ? 1e-30 : 1 / temperature;
    const float largest = *std::max_element(logits.begin(), logits.end());
    if (largest == -kInfinity) continue;
    std::vector<uint64_t> masses(size);
    for (size_t i = 0; i < size; ++i)
      masses[i] = sample::MassOfWeight(sample::ExpNonPositive(sample::Exponent(logits[i], largest, inverse)));
    ASSERT_EQ(RaceOfLogits(logits, largest, inverse, draw), Slowly(masses, {}, draw)) << size << " draw " << draw;
  }
}

TEST(SamplerRace, NobodyRunsWithoutMass) {
  EXPECT_EQ(Race({}, {}, 1), -1);
  EXPECT_EQ(Race(std::vector<uint64_t>(200), {}, 1), -1);
  std::vector<uint64_t> masses(200);
  masses[130] = 1;
  EXPECT_EQ(Race(masses, {}, 1), 130);
}

}  // namespace
}  // namespace dsv4::internal
