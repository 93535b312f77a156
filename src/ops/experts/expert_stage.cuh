// Shared by the kernels for one token (expert_one.cuh) and for a few (expert_few.cuh): the products of a stage of a
// warp's ring, and the store of a row pair's sums.
#pragma once

#include "ops/experts/expert_gemm.cuh"

namespace dsv4::experts {

// Bytes of a tile of a matrix, in a launch of format F.
template <WeightFormat F>
__device__ __forceinline__ int BytesOfTile(bool beside) {
  return static_cast<int>(TileBytes(HasFormatBeside(F) && beside ? FormatBeside(F) : F));
}

// Multiplies one token's or a chunk's columns with two tiles of format T of each stream. The columns have the form of
// Columns: a lane's 32 bytes of a tile in two halves at `low` and `high`, tiles 128 bytes apart. The second stream's
// tiles are kStreamBytes after `codes`. `wait` is called when the columns are loaded; the tiles may not be available
// before.
template <WeightFormat T, int kStreamBytes, typename Wait>
__device__ __forceinline__ void MultiplyTwoTiles(uint32_t low_at, uint32_t high_at, uint32_t codes, uint32_t scales,
                                                 float (&sum)[2][1][4], const Wait& wait) {
  constexpr int kTileBytes = static_cast<int>(TileBytes(T));
  const TileScales<T> no_scales[2] = {};
  Columns columns[2][1][1];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint4 low = shared_tile::LoadShared16(low_at + j * 128), high = shared_tile::LoadShared16(high_at + j * 128);
    columns[j][0][0] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  }
  wait();
  LaneTile<T> raw[2][2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int offset = j * kTileBytes;
    raw[j][0] = LoadSharedTile<T>(codes + offset, scales + offset);
    raw[j][1] = LoadSharedTile<T>(codes + offset + kStreamBytes, scales + offset + kStreamBytes);
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) MultiplyTiles<T, 1, 1, false>(raw[j], columns[j], sum, no_scales, 0);
}

// The sum of a lane's row of a row pair: the warps' sums in order, 32 floats of each.
__device__ __forceinline__ float AddWarps(const float* from) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += from[w * 32];
  return sum;
}

// Stores the scaled sum of a lane's row for the token and choice `pair`. Up: lanes 0 to 15 have rows of gate, lanes 16
// to 31 the same rows of up; they become a hidden row, as two planes.
__device__ __forceinline__ void StoreRowPair(const GemmArgs& a, bool up, int pair, int row, int lane, float sum) {
  if (!up) {
    a.outputs[int64_t{pair} * a.n + 32 * row + lane] = sum;
    return;
  }
  const float second = __shfl_down_sync(0xFFFFFFFFu, sum, 16);
  if (lane >= 16) return;
  uint16_t part[2];
  SplitBf16<2>(SwigluValue(sum, second, a.limit) * a.weights[pair], part);
  uint16_t* to = a.hidden_planes + int64_t{pair} * a.n + 16 * row + lane;
  to[0] = part[0], to[a.hidden_plane_elements] = part[1];
}

}  // namespace dsv4::experts
