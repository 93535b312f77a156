// The winner of the race of base/sample_math.h among many tokens, without a logarithm for each.
#pragma once

#include <cstdint>
#include <span>

#include "dsv4/types.h"

namespace dsv4::internal {

// Returns the token with the smallest RaceTime; ties: the lowest id. Tokens without mass do not take part; -1: no token
// does. ids: the tokens of the masses, in any order; empty: 0, 1, .. Masses are at most 2^46.
TokenId Race(std::span<const uint64_t> masses, std::span<const TokenId> ids, uint64_t draw);

// The same for the masses of all logits at a temperature. Computes only the masses of tokens that may win. `largest` is
// the largest logit.
TokenId RaceOfLogits(std::span<const float> logits, float largest, double inverse_temperature, uint64_t draw);

}  // namespace dsv4::internal
