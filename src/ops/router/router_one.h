// What RouteOneKernel takes: one token, as many experts as its blocks have rows.
#pragma once

#include "ops/pack_weight/pack_weight.h"

namespace dsv4::router {

inline constexpr int kBlocks = 16, kRows = 16, kExperts = kBlocks * kRows, kMaxChosen = 31;
inline constexpr int kSegments = 8;  // of K, as tile_linear cuts it; a warp each
inline constexpr int kMaxTiles = 12;  // of a segment
inline constexpr WeightFormat kFormat = WeightFormat::kBf16;

}  // namespace dsv4::router
