#include "engine/sampling/sampler_race.h"

#include <algorithm>
#include <limits>

#include "base/sample_math.h"
#include "base/vector_clones.h"

namespace dsv4::internal {

namespace {

constexpr size_t kRaceBlock = 64;

// -ln u >= 1 - u: if this holds, the token is too late, without computing a logarithm.
inline bool IsLate(double u, uint64_t mass, double least) {
  return (1 - u) * (1 - 1e-12) > least * static_cast<double>(static_cast<int64_t>(mass));
}

// How many of the kRaceBlock tokens beginning with id `first` may be in time.
DSV4_VECTOR_CLONES size_t CountEarly(const uint64_t* masses, uint64_t draw, size_t first, double least) {
  size_t early = 0;
  for (size_t i = 0; i < kRaceBlock; ++i) {
    const double u = sample::UniformOfRace(draw, static_cast<TokenId>(first + i));
    early += IsLate(u, masses[i], least) ? 0 : 1;
  }
  return early;
}

}  // namespace

TokenId Race(std::span<const uint64_t> masses, std::span<const TokenId> ids, uint64_t draw) {
  double least = std::numeric_limits<double>::infinity();
  TokenId winner = -1;
  const auto run = [&](size_t i) {
    const TokenId id = ids.empty() ? static_cast<TokenId>(i) : ids[i];
    const double u = sample::UniformOfRace(draw, id);
    if (masses[i] == 0 || IsLate(u, masses[i], least)) return;
    const double time = sample::RaceTime(u, masses[i]);
    if (time < least || (time == least && id < winner)) least = time, winner = id;
  };
  for (size_t i = 0, end = 0; i < masses.size(); i = end) {
    end = std::min(i + kRaceBlock, masses.size());
    const bool whole = ids.empty() && end - i == kRaceBlock;
    if (whole && CountEarly(masses.data() + i, draw, i, least) == 0) continue;
    for (size_t j = i; j < end; ++j) run(j);
  }
  return winner;
}

}  // namespace dsv4::internal
