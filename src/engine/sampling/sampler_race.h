// Who wins the race of base/sample_math.h among many tokens, without a logarithm of each.
#pragma once

#include <cstdint>
#include <span>

#include "dsv4/types.h"

namespace dsv4::internal {

// The token with the least RaceTime, the lowest id of equals; one without mass does not run; -1: none runs. ids: of
// what the masses belong to, in any order; empty: 0, 1, .. Masses are at most 2^46.
TokenId Race(std::span<const uint64_t> masses, std::span<const TokenId> ids, uint64_t draw);

}  // namespace dsv4::internal
