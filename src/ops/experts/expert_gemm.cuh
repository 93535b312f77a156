// Products of grouped tokens with their experts' packed tiles (ops/pack_weight/pack_weight.h), 1 to 16 tokens at a time.
//
// Work is a list of (chunk, row pair): a chunk is an expert with up to 16 of its (token, slot) pairs, a row pair two tiles
// of 16 rows that share their input: gate and up, or two neighbouring row tiles of down. The persistent grid cuts the
// list into equal contiguous parts. In a block one warp requests tiles, 8 or 16 of each row tile at a time, into a ring of
// bulk copies (PTX ISA, "cp.async.bulk"); it runs ahead over the ends of items. Eight warps take one or two tiles of each
// such stage, decode them in registers (tile_mma.cuh) and multiply with mma.m16n8k16, weights as the 16 rows, tokens as
// the 8 columns. The warps' sums are added in order, so a result depends on K and nothing else: not on T, the grouping,
// or the grid.
#pragma once

#include "device/launch.cuh"
#include "ops/experts/expert_rows.cuh"
#include "ops/experts/experts.h"
#include "ops/swiglu/swiglu_cuda.cuh"
#include "ops/tile_mma.cuh"
#include "ops/wgmma.cuh"

namespace dsv4::experts {

inline constexpr int kWarps = 8, kThreads = (kWarps + 1) * 32;  // the last warp requests
inline constexpr int kChunkTokens = 16;
inline constexpr int kColumnStride = 20;                       // floats between columns of partial sums: no bank conflicts
inline constexpr int kPartial = 2 * 8 * kColumnStride;         // one warp's sums: two row tiles, eight columns
inline constexpr int kPartialFloats = 2 * kWarps * kPartial;   // two sets: for 16 columns, or for two items in turn

struct Chunk {
  int32_t expert, begin, count, unused;  // pairs [begin, begin + count) of the sorted list
};

struct GemmArgs {
  const ExpertMatrices* matrices;
  int num_experts;
  // The chunks: of one token (`experts` [A], chunk i is slot i), or made by PlanKernel.
  const int32_t* experts;
  int num_slots;
  const int32_t* num_chunks;
  const Chunk* chunks;
  const int32_t* pairs;
  // Input rows: BF16 planes [rows, padded K]; or, for one token, its f32 row.
  const uint16_t* planes;
  int64_t plane_elements;
  bool row_is_token;  // row of a pair: pair / num_slots, or pair
  const float* x;
  int k, n;  // n: rows of one matrix
  // Up: hidden activations, as planes [pairs, padded F] or, where they are rounded later, f32 rows 2F apart.
  float limit;
  const float* weights;
  uint16_t* hidden_planes;
  int64_t hidden_plane_elements;
  float* hidden;
  // Down.
  float* outputs;  // [pairs, n]
};

template <WeightFormat F>
struct Ring {
  static constexpr int kTileBytes = static_cast<int>(TileBytes(F));
  static constexpr int kWarpTiles = kTileBytes == 576 ? 2 : 1;  // of a stage, per warp and stream
  static constexpr int kTiles = kWarps * kWarpTiles;            // of a stage, per stream
  static constexpr int kStages = kTileBytes == 2048 ? 2 : 4;
  static constexpr int kStreamBytes = kTiles * kTileBytes;
  static constexpr int kStageBytes = 2 * kStreamBytes;
  static constexpr int kBytes = kStages * kStageBytes;
};

template <WeightFormat F>
inline int64_t GemmSharedBytes(bool x_in_shared, int k) {
  return Ring<F>::kBytes + kPartialFloats * 4 + 128 + (x_in_shared ? PaddedColumns(k) * 2 : 0);
}

// One lane's view of the chunk `first + lane`; the others' by shuffles.
struct ChunkCache {
  int first;
  Chunk chunk;
  const uint8_t *codes0, *codes1;
  float scale0, scale1;
};

template <bool Up>
__device__ __forceinline__ void FillCache(const GemmArgs& a, int first, int num_chunks, int lane, ChunkCache& c) {
  c.first = first;
  const int i = first + lane;
  c.chunk = {0, 0, 0, 0};
  c.codes0 = c.codes1 = nullptr;
  c.scale0 = c.scale1 = 0;
  if (i >= num_chunks) return;
  if (a.experts != nullptr) {
    c.chunk = {a.experts[i], i, 1, 0};
    c.chunk.expert = min(max(c.chunk.expert, 0), a.num_experts - 1);
  } else {
    c.chunk = a.chunks[i];
  }
  const ExpertMatrices& m = a.matrices[c.chunk.expert];
  c.codes0 = Up ? m.gate.codes : m.down.codes;
  c.codes1 = Up ? m.up.codes : m.down.codes;
  c.scale0 = Up ? m.gate.global_scale : m.down.global_scale;
  c.scale1 = Up ? m.up.global_scale : m.down.global_scale;
}

__device__ __forceinline__ const uint8_t* ShufflePointer(const uint8_t* p, int lane) {
  return reinterpret_cast<const uint8_t*>(__shfl_sync(0xFFFFFFFFu, reinterpret_cast<unsigned long long>(p), lane));
}

// Items of a block, in the order of the list.
struct Cursor {
  int chunk, row;
  __device__ __forceinline__ void Next(int rows) {
    if (++row == rows) row = 0, ++chunk;
  }
};

// Block scales of one row of tiles; only FP8 has them outside its tiles.
template <WeightFormat F>
struct TileScales {
  __device__ __forceinline__ void Row(const uint8_t*, int, int) {}
};
template <>
struct TileScales<WeightFormat::kFp8Block> {
  const float* scale;
  __device__ __forceinline__ void Row(const uint8_t* block_scale, int tile, int k) {
    scale = reinterpret_cast<const float*>(block_scale) + int64_t{tile} * ((k + 127) / 128);
  }
};

// sum[stream][block] += the streams' tiles x the columns of that block; Planes terms of every column.
template <WeightFormat F, int Blocks, int Planes>
__device__ __forceinline__ void MultiplyTiles(const uint8_t* tile0, const uint8_t* tile1, int lane,
                                              const uint32_t (&b)[Blocks][Planes][8], float (&sum)[2][2][4],
                                              const TileScales<F> (&scales)[2], int k_tile) {
  uint32_t w[2][4][4];
  const LaneTile<F> raw0 = LoadTile<F>(tile0, lane), raw1 = LoadTile<F>(tile1, lane);
  DecodeTile<F>(raw0, w[0]);
  DecodeTile<F>(raw1, w[1]);
  const auto multiply = [&](auto& to) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
#pragma unroll
      for (int p = 0; p < Planes; ++p) {
#pragma unroll
        for (int block = 0; block < Blocks; ++block) {
          MmaBf16(to[0][block], w[0][s], b[block][p][2 * s], b[block][p][2 * s + 1]);
          MmaBf16(to[1][block], w[1][s], b[block][p][2 * s], b[block][p][2 * s + 1]);
        }
      }
    }
  };
  if constexpr (F == WeightFormat::kFp8Block) {
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

template <WeightFormat F, int Planes, bool Up>
__global__ void __launch_bounds__(kThreads, Planes == 1 ? 2 : 1) ExpertGemmKernel(const GemmArgs a) {
  using R = Ring<F>;
  extern __shared__ __align__(128) uint8_t shared[];
  float* partial = reinterpret_cast<float*>(shared + R::kBytes);
  uint64_t* barriers = reinterpret_cast<uint64_t*>(shared + R::kBytes + kPartialFloats * 4);
  uint16_t* shared_x = reinterpret_cast<uint16_t*>(shared + R::kBytes + kPartialFloats * 4 + 128);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t full = sm90::SharedAddress(barriers), empty = full + 8 * R::kStages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < R::kStages; ++s) {
      sm90::BarrierInit(full + 8 * s, 1);
      sm90::BarrierInit(empty + 8 * s, kWarps);
    }
    sm90::BarrierInitFence();
    sm90::FenceAsyncShared();
  }
  if constexpr (Up) {
    // The table of matrices is cold; it is weights.
    const uint8_t* table = reinterpret_cast<const uint8_t*>(a.matrices);
    const int64_t bytes = int64_t{a.num_experts} * static_cast<int>(sizeof(ExpertMatrices));
    for (int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 64; at < bytes; at += int64_t{gridDim.x} * kThreads * 64) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(table + at));
    }
  }
  __syncthreads();
  if constexpr (Up) WaitForPrevious();
  // After Up's wait, so that Down starts when the plan is complete and may request the experts' weights before its own.
  AllowNext();

  const int num_chunks = a.experts != nullptr ? a.num_slots : *a.num_chunks;
  const int row_tiles = (a.n + 15) / 16, rows = Up ? row_tiles : (row_tiles + 1) / 2;
  const int k_tiles = (a.k + 63) / 64;
  const int64_t total = int64_t{num_chunks} * rows;
  const int64_t begin = total * blockIdx.x / gridDim.x;
  const int num_items = static_cast<int>(total * (blockIdx.x + 1) / gridDim.x - begin);
  Cursor item{static_cast<int>(begin / rows), static_cast<int>(begin % rows)};

  ChunkCache cache;
  FillCache<Up>(a, item.chunk, num_chunks, lane, cache);
  int stage = 0, parity = 0;
  const auto next_stage = [&] {
    if (++stage == R::kStages) stage = 0, parity ^= 1;
  };

  if (warp == kWarps) {
    for (int i = 0; i < num_items; ++i, item.Next(rows)) {
      if (item.chunk - cache.first >= 32) FillCache<Up>(a, item.chunk, num_chunks, lane, cache);
      const int at = item.chunk - cache.first;
      const int tile0 = Up ? item.row : 2 * item.row, tile1 = Up ? item.row : min(2 * item.row + 1, row_tiles - 1);
      const uint8_t* from0 = ShufflePointer(cache.codes0, at) + int64_t{tile0} * k_tiles * R::kTileBytes;
      const uint8_t* from1 = ShufflePointer(cache.codes1, at) + int64_t{tile1} * k_tiles * R::kTileBytes;
      for (int k = 0; k < k_tiles; k += R::kTiles) {
        sm90::BarrierWait(empty + 8 * stage, parity ^ 1);
        if (lane == 0) {
          const uint32_t to = sm90::SharedAddress(shared) + stage * R::kStageBytes, bytes = min(R::kTiles, k_tiles - k) * R::kTileBytes;
          sm90::BarrierExpect(full + 8 * stage, 2 * bytes);
          sm90::BulkLoad(to, from0, bytes, full + 8 * stage);
          sm90::BulkLoad(to + R::kStreamBytes, from1, bytes, full + 8 * stage);
        }
        from0 += R::kStreamBytes, from1 += R::kStreamBytes;
        next_stage();
      }
    }
    return;
  }

  if constexpr (!Up) WaitForPrevious();
  if (a.x != nullptr) {  // one token: its row as BF16
    const int padded = static_cast<int>(PaddedColumns(a.k));
    for (int i = threadIdx.x; i < padded; i += kWarps * 32) {
      shared_x[i] = i < a.k ? __bfloat16_as_ushort(__float2bfloat16_rn(a.x[i])) : uint16_t{0};
    }
    sm90::NamedBarrier(1, kWarps * 32);
  }

  int set = 0, known_chunk = -1;
  Chunk chunk{};
  float scale0 = 0, scale1 = 0;
  const uint8_t* row[2] = {nullptr, nullptr};  // the lane's column of each block of eight
  const int64_t plane_bytes = a.plane_elements * 2, row_bytes = PaddedColumns(a.k) * 2;
  const auto pair_of = [&](int column) { return a.experts != nullptr ? chunk.begin + column : a.pairs[chunk.begin + column]; };

  for (int i = 0; i < num_items; ++i, item.Next(rows)) {
    if (item.chunk != known_chunk) {
      known_chunk = item.chunk;
      if (item.chunk - cache.first >= 32) FillCache<Up>(a, item.chunk, num_chunks, lane, cache);
      const int at = item.chunk - cache.first;
      chunk.expert = __shfl_sync(0xFFFFFFFFu, cache.chunk.expert, at);
      chunk.begin = __shfl_sync(0xFFFFFFFFu, cache.chunk.begin, at);
      chunk.count = __shfl_sync(0xFFFFFFFFu, cache.chunk.count, at);
      scale0 = __shfl_sync(0xFFFFFFFFu, cache.scale0, at);
      scale1 = __shfl_sync(0xFFFFFFFFu, cache.scale1, at);
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        row[b] = nullptr;
        if (8 * b + g >= chunk.count) continue;
        const int pair = pair_of(8 * b + g);
        const int64_t r = a.row_is_token ? pair / a.num_slots : pair;
        row[b] = (a.x != nullptr ? reinterpret_cast<const uint8_t*>(shared_x)
                                 : reinterpret_cast<const uint8_t*>(a.planes) + r * row_bytes) + 32 * t;
      }
    }
    // The epilogue's threads are other warps for every item: a warp that adds up does not multiply meanwhile.
    const int out = (threadIdx.x + 32 * i) % (kWarps * 32), out_column = out / 16, out_row = out % 16;
    int out_pair = 0;
    float weight = 0;
    if (out_column < chunk.count) {
      out_pair = pair_of(out_column);
      if constexpr (Up) weight = a.weights[out_pair];
    }

    float sum[2][2][4] = {};  // stream, block of columns
    const bool wide = chunk.count > 8;
    TileScales<F> scales[2];
    if constexpr (F == WeightFormat::kFp8Block) {
      const ExpertMatrices& m = a.matrices[chunk.expert];
      const int tile0 = Up ? item.row : 2 * item.row, tile1 = Up ? item.row : min(2 * item.row + 1, row_tiles - 1);
      scales[0].Row((Up ? m.gate : m.down).block_scale, tile0, a.k);
      scales[1].Row((Up ? m.up : m.down).block_scale, tile1, a.k);
    }
    for (int k = warp * R::kWarpTiles; k - warp * R::kWarpTiles < k_tiles; k += R::kTiles) {
      sm90::BarrierWait(full + 8 * stage, parity);
      const uint8_t* tiles = shared + stage * R::kStageBytes + warp * R::kWarpTiles * R::kTileBytes;
#pragma unroll
      for (int j = 0; j < R::kWarpTiles; ++j) {
        if (k + j < k_tiles) {
          const uint8_t *tile0 = tiles + j * R::kTileBytes, *tile1 = tile0 + R::kStreamBytes;
          const auto load = [&](int block, int plane, uint32_t (&b)[8]) {
            uint4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
            if (row[block] != nullptr) {
              const uint4* from = reinterpret_cast<const uint4*>(row[block] + plane * plane_bytes + (k + j) * 128);
              low = from[0], high = from[1];
            }
            b[0] = low.x, b[1] = low.y, b[2] = low.z, b[3] = low.w;
            b[4] = high.x, b[5] = high.y, b[6] = high.z, b[7] = high.w;
          };
          if (Planes == 1 && !wide) {
            uint32_t b[1][1][8];
            load(0, 0, b[0][0]);
            MultiplyTiles<F, 1, 1>(tile0, tile1, lane, b, sum, scales, k + j);
          } else {
            uint32_t b[2][Planes][8];
#pragma unroll
            for (int block = 0; block < 2; ++block) {
#pragma unroll
              for (int p = 0; p < Planes; ++p) load(block, p, b[block][p]);
            }
            MultiplyTiles<F, 2, Planes>(tile0, tile1, lane, b, sum, scales, k + j);
          }
        }
      }
      __syncwarp();
      if (lane == 0) sm90::BarrierArrive(empty + 8 * stage);
      next_stage();
    }

    // ---- the warps' sums, in order ----
    if (wide) sm90::NamedBarrier(1, kWarps * 32);  // the other set may still be read
    const int first_set = wide ? 0 : set;
    const int used = min((chunk.count + 7) / 8, 2);
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      if (b < used) {
        float* mine = partial + ((first_set + b) * kWarps + warp) * kPartial;
#pragma unroll
        for (int s = 0; s < 2; ++s) {
#pragma unroll
          for (int q = 0; q < 4; ++q) {
            const int column = 2 * t + q % 2;
            if (8 * b + column < chunk.count) mine[(8 * s + column) * kColumnStride + g + q / 2 * 8] = sum[s][b][q];
          }
        }
      }
    }
    sm90::NamedBarrier(1, kWarps * 32);
    if (out_column < chunk.count) {
      const float* from = partial + (first_set + out_column / 8) * kWarps * kPartial + out_column % 8 * kColumnStride + out_row;
      float first = 0, second = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        first += from[w * kPartial];
        second += from[w * kPartial + 8 * kColumnStride];
      }
      first *= scale0 * kTileFactor<F>;
      second *= scale1 * kTileFactor<F>;
      if constexpr (Up) {
        const int f = 16 * item.row + out_row;
        const float h = f < a.n ? SwigluValue(first, second, a.limit) * weight : 0.0f;
        if (a.hidden != nullptr) {
          if (f < a.n) a.hidden[int64_t{out_pair} * 2 * a.n + f] = h;
        } else {
          const int64_t padded = PaddedColumns(a.n);
          uint16_t part[Planes];
          SplitBf16<Planes>(h, part);
#pragma unroll
          for (int p = 0; p < Planes; ++p) {
            uint16_t* to = a.hidden_planes + p * a.hidden_plane_elements + out_pair * padded;
            to[f] = part[p];
            if (item.row == rows - 1) {
              for (int64_t c = f + 16; c < padded; c += 16) to[c] = 0;
            }
          }
        }
      } else {
        float* to = a.outputs + int64_t{out_pair} * a.n;
        const int f = 32 * item.row + out_row;
        if (f < a.n) to[f] = first;
        if (f + 16 < a.n) to[f + 16] = second;
      }
    }
    if (wide) {
      sm90::NamedBarrier(1, kWarps * 32);
      set = 0;
    } else {
      set ^= 1;
    }
  }
}

}  // namespace dsv4::experts
