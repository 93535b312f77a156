// Compile-time properties of the formats of weights in tiles (ops/pack_weight/pack_weight.h), for the GPU kernels. The
// files nvfp4.cuh, mxfp4.cuh, tight_fp4.cuh, fp8.cuh and bf16.cuh of this folder decode the tiles. F32 has no tiles.
#pragma once

#include <cstdint>

#include "tensor/weight_format.h"

namespace dsv4 {

// The bytes of 16 rows x 64 columns.
constexpr int64_t TileBytes(WeightFormat f) {
  switch (f) {
    case WeightFormat::kNvfp4:
    case WeightFormat::kMxfp4:
      return 576;
    case WeightFormat::kNvfp4Tight:
    case WeightFormat::kMxfp4Tight:
      return 528;
    case WeightFormat::kFp8Block:
      return 1024;
    case WeightFormat::kBf16:
      return 2048;
    case WeightFormat::kF32:
      return 0;
  }
  return 0;
}

// The tiles of a chunk, which a warp requests together (ops/linear/tile/tile_linear.cuh): at most 2,304 bytes. F32,
// which represents several formats: the largest number.
constexpr int TilesOfChunk(WeightFormat f) {
  return f == WeightFormat::kBf16 ? 1 : f == WeightFormat::kFp8Block ? 2 : 4;
}

// FP8's block scales are in a separate array, one per 16 rows x 128 columns; FP4's are in the tiles.
constexpr bool HasScalesBeside(WeightFormat f) { return f == WeightFormat::kFp8Block; }

// The offset of the scales of a lane's codes in an FP4 tile.
constexpr int ScalesOfLane(WeightFormat f, int lane) { return 512 + (IsTight(f) ? lane / 2 : 2 * lane); }

// With wgmma: weights and inputs are FP16. Otherwise BF16; inputs then have at least two terms if the weights have
// BF16's eight significant bits.
constexpr bool IsHalf(WeightFormat f) {
  return FormatOfRows(f) == WeightFormat::kNvfp4 || f == WeightFormat::kFp8Block;
}
constexpr bool NeedsTwoParts(WeightFormat f) { return f == WeightFormat::kBf16; }

// The factor of sums of decoded weights times inputs, in addition to the tensor's own scales: with mma, with wgmma.
constexpr float MmaFactor(WeightFormat f) { return IsTight(f) ? 0x1p29f : f == WeightFormat::kNvfp4 ? 256.0f : 1.0f; }
constexpr float WgmmaFactor(WeightFormat f) {
  switch (f) {
    case WeightFormat::kNvfp4:
      return 0x1p8f;
    case WeightFormat::kNvfp4Tight:
      return 0x1p14f;
    case WeightFormat::kMxfp4Tight:
      return 0x1p29f;
    case WeightFormat::kFp8Block:
      return 0x1p-7f;
    default:
      return 1.0f;
  }
}

// A second format that experts may have among experts of format `f`, in kernels of decode rows. A shared expert is
// quantised separately, so it is rarely tight if the routed experts are.
constexpr WeightFormat FormatBeside(WeightFormat f) {
  return f == WeightFormat::kNvfp4Tight ? WeightFormat::kNvfp4 : f;
}
constexpr bool HasFormatBeside(WeightFormat f) { return FormatBeside(f) != f; }

// Calls call.operator()<F>() with the format of these tiles. Does nothing for F32, and for tight formats, which only
// experts have.
template <typename Call>
void WithTileFormat(WeightFormat format, const Call& call) {
  switch (format) {
    case WeightFormat::kNvfp4:
      return call.template operator()<WeightFormat::kNvfp4>();
    case WeightFormat::kMxfp4:
      return call.template operator()<WeightFormat::kMxfp4>();
    case WeightFormat::kFp8Block:
      return call.template operator()<WeightFormat::kFp8Block>();
    case WeightFormat::kBf16:
      return call.template operator()<WeightFormat::kBf16>();
    case WeightFormat::kF32:
    case WeightFormat::kMxfp4Tight:
    case WeightFormat::kNvfp4Tight:
      return;
  }
}
template <typename Call>
void WithExpertFormat(WeightFormat format, const Call& call) {
  switch (format) {
    case WeightFormat::kMxfp4Tight:
      return call.template operator()<WeightFormat::kMxfp4Tight>();
    case WeightFormat::kNvfp4Tight:
      return call.template operator()<WeightFormat::kNvfp4Tight>();
    default:
      return WithTileFormat(format, call);
  }
}

}  // namespace dsv4
