// All formats in tiles, for device code.
#pragma once

#include "ops/weight_formats/bf16.cuh"
#include "ops/weight_formats/fp8.cuh"
#include "ops/weight_formats/mxfp4.cuh"
#include "ops/weight_formats/nvfp4.cuh"
#include "ops/weight_formats/tight_fp4.cuh"

namespace dsv4 {

// WithTileFormat of tile_formats.h on the device: calls call.operator()<F>() for the formats that have tiles.
template <typename Call>
__device__ __forceinline__ void CallWithTileFormat(WeightFormat format, const Call& call) {
  switch (format) {
    case WeightFormat::kNvfp4:
      return call.template operator()<WeightFormat::kNvfp4>();
    case WeightFormat::kMxfp4:
      return call.template operator()<WeightFormat::kMxfp4>();
    case WeightFormat::kFp8Block:
      return call.template operator()<WeightFormat::kFp8Block>();
    default:
      return call.template operator()<WeightFormat::kBf16>();
  }
}

}  // namespace dsv4
