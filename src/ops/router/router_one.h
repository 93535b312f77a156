// The limits of RouteOneKernel: one token or a few, and one expert per row of its blocks.
#pragma once

#include "ops/pack_weight/pack_weight.h"

namespace dsv4::router {

inline constexpr int kBlocks = 16, kRows = 16, kExperts = kBlocks * kRows, kMaxChosen = 31;
inline constexpr int kSegments = 8;                       // of K, as in tile_linear; one warp each
inline constexpr int kMaxTiles = 12, kMaxTilesOfFew = 8;  // per segment, for one token and for more
inline constexpr int kMostTokens = 4;
constexpr int MostTiles(int64_t tokens) { return tokens == 1 ? kMaxTiles : kMaxTilesOfFew; }
inline constexpr WeightFormat kFormat = WeightFormat::kBf16;

}  // namespace dsv4::router
