// Products of one token with its experts' FP4 tiles. Blocks, teams, row pairs, parts of K and the order of sums are
// those of ExpertGemmKernel with two teams (so are the bits), without what only more tokens need: with one token the
// number of instructions is what takes the time, and there a fifth (up) to a third (down) of them are not the
// products'.
//
// A warp's part of x lies in shared memory as two BF16 planes; the lanes of the product's columns 0 and 4 read the
// first and the second plane, the others zeros.
#pragma once

#include "ops/experts/expert_gemm.cuh"

namespace dsv4::experts {

inline constexpr int kOneItems = 8;           // row pairs of a team, at most
inline constexpr int kOneSums = kWarps * 32;  // floats of a row pair: 32 rows of each warp
using OneRing = Ring<WeightFormat::kNvfp4>;   // of a team; MXFP4's is the same, tight tiles leave gaps
inline constexpr int kOneTeamBytes = OneRing::kBytes + kOneItems * kOneSums * 4 + 256;
inline constexpr int kOneMaxTiles = 14;  // of a row of tiles, a warp; an even number

// What the host knows of the list of row pairs: each block has `each` of them, the first `more` one more. known: the
// first slot's expert is known beforehand, and each block has its share of the rows. reciprocal: of `rows`, 2^32 / rows
// rounded up.
struct OneList {
  int rows, each, more;
  bool up, known;
  uint32_t reciprocal;
};

inline bool OneTokenFits(const GemmArgs& a, bool up, int64_t items, int blocks) {
  if (a.experts == nullptr || a.num_slots > 32 || a.k % (kWarps * 128) != 0 ||
      a.k > kWarps * kOneMaxTiles * 64 || a.n % 64 != 0)
    return false;
  if (CeilDiv(items, blocks) > 2 * kOneItems) return false;
  return !up || (a.x != nullptr && a.hidden == nullptr && reinterpret_cast<uintptr_t>(a.x) % 16 == 0);
}

inline size_t OneSharedBytes(int64_t k) {
  return static_cast<size_t>(2 * kOneTeamBytes + k / (64 * kWarps) * (128 + 2 * kWarps * 256));
}

inline OneList MakeOneList(int64_t items, int rows, int blocks, bool up, bool knows) {
  const int each = static_cast<int>(items / blocks);
  return {.rows = rows,
          .each = each,
          .more = static_cast<int>(items % blocks),
          .up = up,
          .known = knows && each >= CeilDiv(rows, blocks),
          .reciprocal = static_cast<uint32_t>(((int64_t{1} << 32) + rows - 1) / rows)};
}

// One kernel for both launches, up and down: the second one finds its code in the multiprocessor, where fetching it
// would have to queue behind weights.
// kWhole: all chunks are whole.
template <WeightFormat F, bool kWhole>
__global__ void __launch_bounds__(2 * kTeamThreads, 1) ExpertOneKernel(const GemmArgs a, const OneList list) {
  extern __shared__ __align__(128) uint8_t shared[];
  const bool up = list.up;
  if (!up) AllowNext();
  // Of a warp: tiles of K, bytes of one of x's planes.
  const int tiles = a.k / (64 * kWarps), plane = tiles * 128;
  const auto tile_bytes = [](bool beside) {
    return static_cast<int>(TileBytes(HasFormatBeside(F) && beside ? FormatBeside(F) : F));
  };
  const int warp_of_block = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
  const int team = warp_of_block / kWarps, warp = warp_of_block % kWarps, lane = threadIdx.x % 32,
            g = lane / 4, t = lane % 4;

  // The slots' matrices, a slot a lane. Down may ask for them at once (ExpertGemmKernel).
  const uint8_t *codes0 = nullptr, *codes1 = nullptr;
  float scale0 = 0, scale1 = 0;
  bool beside = false;
  const auto look_up = [&] {
    if (lane >= a.num_slots) return;
    const ExpertMatrices& m = a.matrices[min(max(a.experts[lane], 0), a.num_experts - 1)];
    const QuantTensor &first = up ? m.gate : m.down, &second = up ? m.up : m.down;
    beside = IsBeside<F>(first);
    codes0 = first.codes, codes1 = second.codes + (up ? 0 : kWarps * tiles * tile_bytes(beside));
    scale0 = SumScale<F>(first.global_scale, beside), scale1 = SumScale<F>(second.global_scale, beside);
  };
  if (!up) look_up();

  uint8_t* const team_shared = shared + team * kOneTeamBytes;
  const uint32_t team_at = __shfl_sync(0xFFFFFFFFu, SharedAddress(team_shared), 0),
                 ring = team_at + warp * 2 * OneRing::kStageBytes;
  float* const sums = reinterpret_cast<float*>(team_shared + OneRing::kBytes);
  const uint32_t sums_full = team_at + OneRing::kBytes + kOneItems * kOneSums * 4,
                 ring_full = sums_full + 8 * kOneItems + 16 * warp;
  uint8_t* const zeros = shared + 2 * kOneTeamBytes;  // a plane of them
  uint8_t* const my_x = zeros + plane + warp_of_block * 2 * plane;
  if (lane == 0) {
    static_assert(kOneItems == kWarps);
    BarrierInit(ring_full, 1), BarrierInit(ring_full + 8, 1);
    BarrierInit(sums_full + 8 * warp, kWarps * 8);  // every lane that stores
    BarrierInitFence();
    FenceAsyncShared();
  }
  if (static_cast<int>(threadIdx.x) < plane / 4) reinterpret_cast<uint32_t*>(zeros)[threadIdx.x] = 0;
  __syncthreads();

  // ---- row pairs: those of the known expert first, then those from `rest` on ----
  struct Place {
    int slot, row;
  };
  const int block = static_cast<int>(blockIdx.x), of_block = list.each + (block < list.more ? 1 : 0),
            begin = list.each * block + min(block, list.more);
  const int before = team == 1 ? (of_block + 1) / 2 : 0,
            num_items = team == 0 ? (of_block + 1) / 2 : of_block / 2;
  const auto at = [&](int i) {
    const int slot = static_cast<int>(__umulhi(static_cast<uint32_t>(i), list.reciprocal));
    return Place{slot, i - slot * list.rows};
  };
  Place item, rest = {};
  int known = 0;
  if (list.known) {
    const int first = list.rows * block / static_cast<int>(gridDim.x),
              all = list.rows * (block + 1) / static_cast<int>(gridDim.x) - first;
    known = max(all - before, 0);
    rest = at(list.rows + begin - first);
    item = known > 0 ? Place{0, first + before} : at(list.rows + begin - first + before - all);
  } else {
    item = at(begin + before);
  }
  const auto next = [&](Place& place, int& left) {
    if (--left == 0) {
      place = rest;
    } else if (++place.row == list.rows) {
      place.row = 0, ++place.slot;
    }
  };

  // ---- requests ----
  Place ahead = item;
  int ahead_known = known, ahead_items = num_items, ahead_tile = 0, ahead_stage = 0, ahead_bytes = tile_bytes(false);
  const auto is_beside = [&](int slot) {
    return HasFormatBeside(F) && __shfl_sync(0xFFFFFFFFu, static_cast<int>(beside), slot) != 0;
  };
  const uint8_t *from0 = nullptr, *from1 = nullptr;
  const auto request = [&] {
    if (ahead_items <= 0) return;
    if (ahead_tile == 0) {
      if (HasFormatBeside(F)) ahead_bytes = tile_bytes(is_beside(ahead.slot));
      const int slice = tiles * ahead_bytes;  // of a row of tiles
      const uint32_t offset = static_cast<uint32_t>(up ? ahead.row : 2 * ahead.row) *
                                  static_cast<uint32_t>(kWarps * slice) +
                              static_cast<uint32_t>(warp * slice);
      from0 = ShufflePointer(codes0, ahead.slot) + offset;
      from1 = ShufflePointer(codes1, ahead.slot) + offset;
    }
    if (ElectLane()) {
      const int count = kWhole ? OneRing::kTiles : min(tiles - ahead_tile, OneRing::kTiles);
      OneRing::Copy(ring + ahead_stage * OneRing::kStageBytes, ring_full + 8 * ahead_stage, from0, from1,
                    count * ahead_bytes, a.policy);
    }
    from0 += OneRing::kTiles * ahead_bytes, from1 += OneRing::kTiles * ahead_bytes;
    ahead_stage ^= 1;
    ahead_tile += OneRing::kTiles;
    if (ahead_tile >= tiles) {
      ahead_tile = 0;
      --ahead_items;
      next(ahead, ahead_known);
    }
  };

  const bool knows = known > 0;
  if (up) {
    PrefetchMatrices<2 * kTeamThreads>(a);
    if (knows) {
      const ExpertMatrices& m = a.matrices[a.always];
      codes0 = m.gate.codes, codes1 = m.up.codes, beside = IsBeside<F>(m.gate);
    }
  }
  // Both stages are asked for before the wait where it is known of what, else behind it.
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    if ((pass == 0) == (knows || !up)) {
#pragma unroll 1
      for (int s = 0; s < 2; ++s) {
        if (s == 0 || !knows || known > 1 || tiles > OneRing::kTiles) request();
      }
    }
    if (pass == 1) break;
    WaitForPrevious();
    if (!up) continue;
    AllowNext();  // after the wait: down asks for weights before its own
    const float4* from = reinterpret_cast<const float4*>(a.x) + warp * tiles * 16 + lane;
    uint2* to = reinterpret_cast<uint2*>(my_x) + lane;
#pragma unroll 1
    for (int first = 0; first < tiles / 2; first += 4) {
      float4 part[4];
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        if (first + u < tiles / 2) part[u] = from[(first + u) * 32];
      }
      if (first == 0) look_up();
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        if (first + u < tiles / 2) {
          const Bf16Pairs low = SplitPairs(part[u].x, part[u].y), high = SplitPairs(part[u].z, part[u].w);
          to[(first + u) * 32] = make_uint2(low.hi, high.hi),
                           to[(first + u) * 32 + plane / 8] = make_uint2(low.lo, high.lo);
        }
      }
    }
    __syncwarp();
  }
  const uint32_t column_at = SharedAddress(g % 4 == 0 ? my_x + g / 4 * plane : zeros) + 32 * t;

  // ---- the warps' sums, in order; a warp adds up one row pair, when it is done with the next ----
  struct {
    int item, slot, row;
  } due = {-1, 0, 0};
  const auto add_up = [&] {
    if (due.item < 0) return;
    BarrierWait(sums_full + 8 * due.item, 0);
    const float* from = sums + due.item * kOneSums + lane;
    due.item = -1;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += from[w * 32];
    const float first_scale = __shfl_sync(0xFFFFFFFFu, scale0, due.slot),
                second_scale = __shfl_sync(0xFFFFFFFFu, scale1, due.slot);
    sum *= lane < 16 ? first_scale : second_scale;
    if (up) {
      const float second = __shfl_down_sync(0xFFFFFFFFu, sum, 16);
      if (lane < 16) {
        uint16_t part[2];
        SplitBf16<2>(SwigluValue(sum, second, a.limit) * a.weights[due.slot], part);
        uint16_t* to = a.hidden_planes + int64_t{due.slot} * a.n + 16 * due.row + lane;
        to[0] = part[0], to[a.hidden_plane_elements] = part[1];
      }
    } else {
      a.outputs[int64_t{due.slot} * a.n + 32 * due.row + lane] = sum;
    }
  };

  // ---- products ----
  int stage = 0, parity = 0, hidden_of = -1;
#pragma unroll 1
  for (int i = 0; i < num_items; ++i) {
    if (!up && item.slot != hidden_of) {
      hidden_of = item.slot;
      const uint8_t* from = reinterpret_cast<const uint8_t*>(a.planes) + int64_t{item.slot} * a.k * 2 +
                            warp * plane;
      __syncwarp();
#pragma unroll 1
      for (int byte = 16 * lane; byte < plane; byte += 512) {
        const uint4 high = *reinterpret_cast<const uint4*>(from + byte),
                    low = *reinterpret_cast<const uint4*>(from + a.plane_elements * 2 + byte);
        *reinterpret_cast<uint4*>(my_x + byte) = high, *reinterpret_cast<uint4*>(my_x + plane + byte) = low;
      }
      __syncwarp();
    }
    float sum[2][1][4] = {};
    const auto multiply = [&]<WeightFormat T>() {
      constexpr int kTileBytes = static_cast<int>(TileBytes(T));
      const TileScales<T> no_scales[2] = {};
#pragma unroll 1
      for (int tile = 0; tile < tiles; tile += OneRing::kTiles) {
        const uint32_t codes = ring + stage * OneRing::kStageBytes + 16 * lane,
                       scales = codes + (ScalesOfLane(T, lane) - 16 * lane), columns_at = column_at + tile * 128;
#pragma unroll
        for (int first = 0; first < OneRing::kTiles; first += 2) {
          if (!kWhole && first > 0 && tile + first == tiles) break;
          Columns columns[2][1][1];
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const uint4 low = shared_tile::LoadShared16(columns_at + (first + j) * 128),
                        high = shared_tile::LoadShared16(columns_at + (first + j) * 128 + 16);
            columns[j][0][0] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
          }
          if (first == 0) BarrierWait(ring_full + 8 * stage, parity);
          LaneTile<T> raw[2][2];
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int offset = (first + j) * kTileBytes;
            raw[j][0] = LoadSharedTile<T>(codes + offset, scales + offset);
            raw[j][1] = LoadSharedTile<T>(codes + offset + OneRing::kStreamBytes,
                                          scales + offset + OneRing::kStreamBytes);
          }
#pragma unroll
          for (int j = 0; j < 2; ++j) MultiplyTiles<T, 1, 1, false>(raw[j], columns[j], sum, no_scales, 0);
        }
        __syncwarp();
        request();
        parity ^= stage;
        stage ^= 1;
      }
    };
    if (is_beside(item.slot)) {
      multiply.template operator()<FormatBeside(F)>();
    } else {
      multiply.template operator()<F>();
    }
    float part[2][2];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        part[s][h] = sum[s][0][2 * h] + __shfl_xor_sync(0xFFFFFFFFu, sum[s][0][2 * h], 2);  // the planes
    }
    add_up();
    if (t == 0) {
      float* mine = sums + i * kOneSums + warp * 32 + g;
      mine[0] = part[0][0], mine[8] = part[0][1], mine[16] = part[1][0], mine[24] = part[1][1];
      BarrierArrive(sums_full + 8 * i);
    }
    if (i == warp) due = {i, item.slot, item.row};
    next(item, known);
  }
  add_up();
}

}  // namespace dsv4::experts
