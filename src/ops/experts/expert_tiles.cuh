// Tiles of experts' weights: from a warp's ring in shared memory, decoded, times up to two blocks of columns.
#pragma once

#include "ops/experts/experts.h"
#include "ops/tile_mma.cuh"

namespace dsv4::experts {

// The block scales of one row of tiles, for formats whose scales are in a separate array.
template <WeightFormat F, bool kBeside = HasScalesBeside(F)>
struct TileScales {
  __device__ __forceinline__ void Row(const uint8_t*, int, int) {}
};
template <WeightFormat F>
struct TileScales<F, true> {
  const float* scale;
  __device__ __forceinline__ void Row(const uint8_t* block_scale, int tile, int k) {
    scale = reinterpret_cast<const float*>(block_scale) + int64_t{tile} * ((k + 127) / 128);
  }
};

// LoadTile by shared addresses that stay in registers: the lane's 16 bytes of codes, and its scales.
template <WeightFormat F>
__device__ __forceinline__ LaneTile<F> LoadSharedTile(uint32_t codes, uint32_t scales) {
  LaneTile<F> raw;
  raw.LoadShared(codes, scales);
  return raw;
}

// Four steps of one column: 16 BF16.
struct Columns {
  uint32_t b[8];
};
__device__ __forceinline__ Columns LoadColumns(const uint8_t* from) {
  const uint4 low = reinterpret_cast<const uint4*>(from)[0], high = reinterpret_cast<const uint4*>(from)[1];
  return {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
}

// sum[stream][block] += the streams' tiles x the columns of that block; `Terms` of every column.
template <WeightFormat F, int Blocks, int Terms, bool kByMul, int SumBlocks>
__device__ __forceinline__ void MultiplyTiles(const LaneTile<F> (&raw)[2], const Columns (&columns)[Blocks][Terms],
                                              float (&sum)[2][SumBlocks][4], const TileScales<F> (&scales)[2],
                                              int k_tile) {
  uint32_t w[2][4][4];
#pragma unroll
  for (int stream = 0; stream < 2; ++stream) DecodeTile<F, kByMul>(raw[stream], w[stream]);
  const auto multiply = [&](auto& to) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
#pragma unroll
      for (int p = 0; p < Terms; ++p) {
#pragma unroll
        for (int block = 0; block < Blocks; ++block) {
          const Columns& c = columns[block][p];
          MmaBf16(to[0][block], w[0][s], c.b[2 * s], c.b[2 * s + 1]);
          MmaBf16(to[1][block], w[1][s], c.b[2 * s], c.b[2 * s + 1]);
        }
      }
    }
  };
  if constexpr (HasScalesBeside(F)) {
    float part[2][Blocks][4] = {};
    multiply(part);
#pragma unroll
    for (int stream = 0; stream < 2; ++stream) {
      const float scale = scales[stream].scale[k_tile / 2];
#pragma unroll
      for (int block = 0; block < Blocks; ++block) {
#pragma unroll
        for (int q = 0; q < 4; ++q) sum[stream][block][q] += scale * part[stream][block][q];
      }
    }
  } else {
    multiply(sum);
  }
}

}  // namespace dsv4::experts
