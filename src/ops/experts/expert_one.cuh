// Products of one token with its experts' FP4 tiles. Blocks, teams, row pairs, parts of K and the order of sums are as
// in ExpertGemmKernel with two teams, so the bits are the same; the kernel omits the code that only more tokens need.
// With one token the number of instructions limits the speed, and a fifth (up) to a third (down) of them are not the
// products'.
//
// A warp's part of x is in shared memory as two BF16 planes. The lanes of the product's columns 0 and 4 read the first
// and the second plane, the others zeros.
#pragma once

#include "ops/experts/expert_stage.cuh"

namespace dsv4::experts {

inline constexpr int kOneSums = kWarps * 32;  // floats of a row pair: 32 rows of each warp
using OneRing = Ring<WeightFormat::kNvfp4>;   // per team; MXFP4's is the same, tight tiles leave gaps
inline constexpr int kOneTeamBytes = OneRing::kBytes + kOneItems * kOneSums * 4 + 256;

// The part of the list of row pairs that the host knows. Each block has `each` of them, and the first `more` blocks one
// more. known: the expert of choice 0 is known before the launch, and each block has a share of its rows. reciprocal:
// 2^32 / rows, rounded up.
struct OneList {
  int rows, each, more;
  bool up, known;
  uint32_t reciprocal;
};

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

// The matrices of the choices, one choice per lane.
template <WeightFormat F>
struct OneMatrices {
  const uint8_t *codes0 = nullptr, *codes1 = nullptr;
  float scale0 = 0, scale1 = 0;
  bool beside = false;

  // For the chosen experts; `slice`: tiles of a warp's part of a row of tiles.
  __device__ __forceinline__ void LookUp(const GemmArgs& a, bool up, int slice, int lane) {
    if (lane >= a.num_slots) return;
    const ExpertMatrices& m = a.matrices[min(max(a.experts[lane], 0), a.num_experts - 1)];
    const QuantTensor &first = up ? m.gate : m.down, &second = up ? m.up : m.down;
    beside = IsBeside<F>(first);
    codes0 = first.codes, codes1 = second.codes + (up ? 0 : kWarps * slice * BytesOfTile<F>(beside));
    scale0 = SumScale<F>(first.global_scale, beside), scale1 = SumScale<F>(second.global_scale, beside);
  }
  // For the expert that is known before the choice.
  __device__ __forceinline__ void UseKnown(const GemmArgs& a) {
    const ExpertMatrices& m = a.matrices[a.always];
    codes0 = m.gate.codes, codes1 = m.up.codes, beside = IsBeside<F>(m.gate);
  }
  __device__ __forceinline__ bool IsBesideAt(int slot) const {
    return HasFormatBeside(F) && __shfl_sync(0xFFFFFFFFu, static_cast<int>(beside), slot) != 0;
  }
};

// A team's row pairs: first the known expert's, then the row pairs from `rest`.
struct OneItems {
  struct Place {
    int slot, row;
  };
  Place item, rest = {};
  int known = 0;  // of the known expert
  int count;
  int rows;

  __device__ __forceinline__ OneItems(const OneList& list, int team) : rows(list.rows) {
    const int block = static_cast<int>(blockIdx.x), of_block = list.each + (block < list.more ? 1 : 0),
              begin = list.each * block + min(block, list.more);
    const int before = team == 1 ? (of_block + 1) / 2 : 0;
    count = team == 0 ? (of_block + 1) / 2 : of_block / 2;
    const auto at = [&](int i) {
      const int slot = static_cast<int>(__umulhi(static_cast<uint32_t>(i), list.reciprocal));
      return Place{slot, i - slot * list.rows};
    };
    if (list.known) {
      const int first = list.rows * block / static_cast<int>(gridDim.x),
                all = list.rows * (block + 1) / static_cast<int>(gridDim.x) - first;
      known = max(all - before, 0);
      rest = at(list.rows + begin - first);
      item = known > 0 ? Place{0, first + before} : at(list.rows + begin - first + before - all);
    } else {
      item = at(begin + before);
    }
  }
  // Moves `place` to the next row pair; `left`: remaining row pairs of the known expert.
  __device__ __forceinline__ void Next(Place& place, int& left) const {
    if (--left == 0) {
      place = rest;
    } else if (++place.row == rows) {
      place.row = 0, ++place.slot;
    }
  }
};

// A warp's requests for its part of the items' weights, which run ahead of the products.
template <WeightFormat F, bool kWhole>
class OneRequests {
 public:
  __device__ __forceinline__ OneRequests(const OneItems& items, uint32_t ring, uint32_t ring_full)
      : ring_(ring),
        full_(ring_full),
        place_(items.item),
        known_(items.known),
        items_(items.count),
        bytes_(BytesOfTile<F>(false)) {}

  // Requests the next stage, if any. `tiles`: of the warp's part of a row of tiles.
  __device__ __forceinline__ void Ask(const GemmArgs& a, const OneItems& items, const OneMatrices<F>& matrices, bool up,
                                      int tiles, int warp) {
    if (items_ <= 0) return;
    if (tile_ == 0) {
      if (HasFormatBeside(F)) bytes_ = BytesOfTile<F>(matrices.IsBesideAt(place_.slot));
      const int slice = tiles * bytes_;
      const uint32_t offset = static_cast<uint32_t>(up ? place_.row : 2 * place_.row) *
                                  static_cast<uint32_t>(kWarps * slice) +
                              static_cast<uint32_t>(warp * slice);
      from0_ = ShufflePointer(matrices.codes0, place_.slot) + offset;
      from1_ = ShufflePointer(matrices.codes1, place_.slot) + offset;
    }
    if (ElectLane()) {
      const int count = kWhole ? OneRing::kTiles : min(tiles - tile_, OneRing::kTiles);
      OneRing::Copy(ring_ + stage_ * OneRing::kStageBytes, full_ + 8 * stage_, from0_, from1_, count * bytes_,
                    a.policy);
    }
    from0_ += OneRing::kTiles * bytes_, from1_ += OneRing::kTiles * bytes_;
    stage_ ^= 1;
    tile_ += OneRing::kTiles;
    if (tile_ >= tiles) {
      tile_ = 0;
      --items_;
      items.Next(place_, known_);
    }
  }

 private:
  uint32_t ring_, full_;
  OneItems::Place place_;
  int known_, items_, tile_ = 0, stage_ = 0, bytes_;
  const uint8_t *from0_ = nullptr, *from1_ = nullptr;
};

// Stores the warp's part of x as planes; calls `first_asked` when the first loads are in flight.
template <typename Call>
__device__ __forceinline__ void StageOne(const GemmArgs& a, int tiles, int warp, int lane, uint8_t* planes,
                                         const Call& first_asked) {
  const int plane = tiles * 128;
  const float4* from = reinterpret_cast<const float4*>(a.x) + warp * tiles * 16 + lane;
  uint2* to = reinterpret_cast<uint2*>(planes) + lane;
#pragma unroll 1
  for (int first = 0; first < tiles / 2; first += 4) {
    float4 part[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      if (first + u < tiles / 2) part[u] = from[(first + u) * 32];
    }
    if (first == 0) first_asked();
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      if (first + u < tiles / 2) {
        const Bf16Pairs low = SplitPairs(part[u].x, part[u].y), high = SplitPairs(part[u].z, part[u].w);
        to[(first + u) * 32] = make_uint2(low.hi, high.hi);
        to[(first + u) * 32 + plane / 8] = make_uint2(low.lo, high.lo);
      }
    }
  }
  __syncwarp();
}

// Loads the warp's part of a choice's hidden row.
__device__ __forceinline__ void LoadOneHidden(const GemmArgs& a, int slot, int plane, int warp, int lane,
                                              uint8_t* planes) {
  const uint8_t* from = reinterpret_cast<const uint8_t*>(a.planes) + int64_t{slot} * a.k * 2 + warp * plane;
  __syncwarp();
#pragma unroll 1
  for (int byte = 16 * lane; byte < plane; byte += 512) {
    const uint4 high = *reinterpret_cast<const uint4*>(from + byte),
                low = *reinterpret_cast<const uint4*>(from + a.plane_elements * 2 + byte);
    *reinterpret_cast<uint4*>(planes + byte) = high, *reinterpret_cast<uint4*>(planes + plane + byte) = low;
  }
  __syncwarp();
}

// One kernel for both launches, up and down, so that the second launch finds its code in the multiprocessor. Fetching
// code would have to queue after weights.
// kWhole: all chunks are whole.
template <WeightFormat F, bool kWhole>
__global__ void __launch_bounds__(2 * kTeamThreads, 1) ExpertOneKernel(const GemmArgs a, const OneList list) {
  extern __shared__ __align__(128) uint8_t shared[];
  const bool up = list.up;
  if (!up) AllowNext();
  // Per warp: tiles of K, bytes of one of x's planes.
  const int tiles = a.k / (64 * kWarps), plane = tiles * 128;
  const int warp_of_block = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
  const int team = warp_of_block / kWarps, warp = warp_of_block % kWarps, lane = threadIdx.x % 32, g = lane / 4,
            t = lane % 4;
  OneMatrices<F> matrices;
  if (!up) matrices.LookUp(a, up, tiles, lane);  // down may read them at once (ExpertGemmKernel)

  uint8_t* const team_shared = shared + team * kOneTeamBytes;
  const uint32_t team_at = __shfl_sync(0xFFFFFFFFu, SharedAddress(team_shared), 0),
                 ring = team_at + warp * 2 * OneRing::kStageBytes;
  float* const sums = reinterpret_cast<float*>(team_shared + OneRing::kBytes);
  const uint32_t sums_full = team_at + OneRing::kBytes + kOneItems * kOneSums * 4,
                 ring_full = sums_full + 8 * kOneItems + 16 * warp;
  uint8_t* const zeros = shared + 2 * kOneTeamBytes;  // one plane
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

  OneItems items(list, team);
  OneRequests<F, kWhole> requests(items, ring, ring_full);
  const auto request = [&] { requests.Ask(a, items, matrices, up, tiles, warp); };
  const bool knows = items.known > 0;
  if (up) {
    PrefetchMatrices<2 * kTeamThreads>(a);
    if (knows) matrices.UseKnown(a);
  }
  // Requests both stages before the wait if the expert is known then, else after it.
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    if ((pass == 0) == (knows || !up)) {
#pragma unroll 1
      for (int s = 0; s < 2; ++s) {
        if (s == 0 || !knows || items.known > 1 || tiles > OneRing::kTiles) request();
      }
    }
    if (pass == 1) break;
    WaitForPrevious();
    if (!up) continue;
    AllowNext();  // after the wait: down requests weights before its own wait
    StageOne(a, tiles, warp, lane, my_x, [&] { matrices.LookUp(a, up, tiles, lane); });
  }
  const uint32_t column_at = SharedAddress(g % 4 == 0 ? my_x + g / 4 * plane : zeros) + 32 * t;

  // Adds the warps' sums, in order: a warp adds one row pair when it has finished the next one.
  struct {
    int item, slot, row;
  } due = {-1, 0, 0};
  const auto add_up = [&] {
    if (due.item < 0) return;
    BarrierWait(sums_full + 8 * due.item, 0);
    float sum = AddWarps(sums + due.item * kOneSums + lane);
    due.item = -1;
    const float first_scale = __shfl_sync(0xFFFFFFFFu, matrices.scale0, due.slot),
                second_scale = __shfl_sync(0xFFFFFFFFu, matrices.scale1, due.slot);
    sum *= lane < 16 ? first_scale : second_scale;
    StoreRowPair(a, up, due.slot, due.row, lane, sum);
  };

  int stage = 0, parity = 0, hidden_of = -1;
#pragma unroll 1
  for (int i = 0; i < items.count; ++i) {
    OneItems::Place& item = items.item;
    if (!up && item.slot != hidden_of) {
      hidden_of = item.slot;
      LoadOneHidden(a, item.slot, plane, warp, lane, my_x);
    }
    float sum[2][1][4] = {};
    const auto multiply = [&]<WeightFormat T>() {
#pragma unroll 1
      for (int tile = 0; tile < tiles; tile += OneRing::kTiles) {
        const uint32_t codes = ring + stage * OneRing::kStageBytes + 16 * lane,
                       scales = codes + (ScalesOfLane(T, lane) - 16 * lane), columns_at = column_at + tile * 128;
#pragma unroll
        for (int first = 0; first < OneRing::kTiles; first += 2) {
          if (!kWhole && first > 0 && tile + first == tiles) break;
          constexpr int kTileBytes = static_cast<int>(TileBytes(T));
          MultiplyTwoTiles<T, OneRing::kStreamBytes>(columns_at + first * 128, columns_at + first * 128 + 16,
                                                     codes + first * kTileBytes, scales + first * kTileBytes, sum, [&] {
                                                       if (first == 0) BarrierWait(ring_full + 8 * stage, parity);
                                                     });
        }
        __syncwarp();
        request();
        parity ^= stage;
        stage ^= 1;
      }
    };
    if (matrices.IsBesideAt(item.slot)) {
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
    items.Next(item, items.known);
  }
  add_up();
}

}  // namespace dsv4::experts
