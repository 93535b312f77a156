#include "engine/sampling/sampler_race.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/random.h"
#include "base/sample_math.h"
#include "base/vector_clones.h"
#include "engine/sampling/wide.h"

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

// Upper bounds of the masses of tokens with weights 2^y, without exponentials. 2^(n + f) is at most (1 + f) 2^n for f
// in [0, 1], and these are the bits of a float. The factor covers the rounding of floats, the 1 that of a mass.
inline void MostMasses(const float* logits, float largest, float times, Doubles& most) {
  Floats y;
  Load(logits, y);
  y = (y - largest) * times;
  y = y > -126.0f ? y : Floats{} - 126.0f;
  const Ints bits = __builtin_convertvector((y + 127.0f) * 0x1p23f, Ints);
  Load(&bits, y);
  most = __builtin_convertvector(y, Doubles) * (1.001 * sample::kMassUnit) + 1.0;
}

// Lower bounds of 1 - UniformOfRace(draw, id) for ids from `first` on: of its 53 bits, 52 make the bits of a double.
// start: MixBits(draw + kGolden) of RandomBits.
inline void LeastGaps(uint64_t start, size_t first, Doubles& gaps) {
  const Words ids = Words{1, 2, 3, 4, 5, 6, 7, 8} + first;
  Words x = start + 0x9e3779b97f4a7c15u * ids;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x = x ^ (x >> 31);
  x = (x >> 12) | 0x3FF0000000000000u;
  Load(&x, gaps);
  gaps = (2.0 - gaps) - 0x1p-52;
}

// CountEarly for logits, by bounds: at least as many. times: log2(e) / temperature.
DSV4_VECTOR_CLONES size_t CountPerhapsEarly(const float* logits, float largest, float times, uint64_t start,
                                            size_t first, double least) {
  Longs late{};
  for (size_t i = 0; i < kRaceBlock; i += kWide) {
    Doubles most, gaps;
    MostMasses(logits + i, largest, times, most);
    LeastGaps(start, first + i, gaps);
    late -= gaps * (1 - 1e-12) > most * least;
  }
  int64_t sum = 0;
  for (size_t lane = 0; lane < kWide; ++lane) sum += late[lane];
  return kRaceBlock - static_cast<size_t>(sum);
}

// The token with the smallest time so far.
struct Lead {
  uint64_t draw;
  double least = std::numeric_limits<double>::infinity();
  TokenId winner = -1;

  void Run(TokenId id, uint64_t mass) {
    const double u = sample::UniformOfRace(draw, id);
    if (mass == 0 || IsLate(u, mass, least)) return;
    const double time = sample::RaceTime(u, mass);
    if (time < least || (time == least && id < winner)) least = time, winner = id;
  }
};

}  // namespace

TokenId Race(std::span<const uint64_t> masses, std::span<const TokenId> ids, uint64_t draw) {
  Lead lead{draw};
  for (size_t i = 0, end = 0; i < masses.size(); i = end) {
    end = std::min(i + kRaceBlock, masses.size());
    const bool whole = ids.empty() && end - i == kRaceBlock;
    if (whole && CountEarly(masses.data() + i, draw, i, lead.least) == 0) continue;
    for (size_t j = i; j < end; ++j) lead.Run(ids.empty() ? static_cast<TokenId>(j) : ids[j], masses[j]);
  }
  return lead.winner;
}

TokenId RaceOfLogits(std::span<const float> logits, float largest, double inverse_temperature, uint64_t draw) {
  Lead lead{draw};
  const auto mass_of = [&](size_t i) {
    return sample::Mass(sample::Exponent(logits[i], largest, inverse_temperature));
  };
  // Its time makes nearly all others late, wherever it is.
  const auto top = static_cast<size_t>(std::find(logits.begin(), logits.end(), largest) - logits.begin());
  if (top < logits.size()) lead.Run(static_cast<TokenId>(top), mass_of(top));
  const double times = inverse_temperature * 1.4426950408889634;
  const uint64_t start = MixBits(draw + 0x9e3779b97f4a7c15u);  // of RandomBits(draw, id)
  const bool bounded = std::isfinite(largest) && times < 1e30;
  for (size_t i = 0, end = 0; i < logits.size(); i = end) {
    end = std::min(i + kRaceBlock, logits.size());
    if (bounded && end - i == kRaceBlock &&
        CountPerhapsEarly(logits.data() + i, largest, static_cast<float>(times), start, i, lead.least) == 0)
      continue;
    for (size_t j = i; j < end; ++j) lead.Run(static_cast<TokenId>(j), mass_of(j));
  }
  return lead.winner;
}

}  // namespace dsv4::internal
