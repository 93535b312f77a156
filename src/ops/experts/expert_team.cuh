// Shared by the functions of ExpertGemmKernel (expert_gemm.cuh): its kinds, a thread's place and its team's shared
// memory, the team's items, and the requests for their weights, which run ahead.
#pragma once

#include "device/barrier.cuh"
#include "device/launch.cuh"
#include "ops/experts/expert_forms.h"
#include "ops/experts/expert_items.cuh"
#include "ops/experts/expert_tiles.cuh"

namespace dsv4::experts {

inline constexpr int kColumnStride = 20;                // floats between columns of partial sums: no bank conflicts
inline constexpr int kPartial = 2 * 8 * kColumnStride;  // one warp's sums: two row tiles, eight columns
inline constexpr int kPartialFloats = 2 * kWarps * kPartial;  // two sets, used alternately

// Has room for the largest tiles; smaller tiles are also stored one after the other.
template <WeightFormat F>
struct Ring {
  static constexpr int kTileBytes = static_cast<int>(TileBytes(FormatBeside(F)));
  static constexpr int kStep = kTileBytes <= 576 ? 2 : 1;                            // tiles in registers at a time
  static constexpr int kTiles = kTileBytes <= 576 ? 4 : kTileBytes == 1024 ? 2 : 1;  // of each stream in a stage
  static constexpr int kStages = 2;
  static constexpr int kStreamBytes = kTiles * kTileBytes;
  static constexpr int kStageBytes = 2 * kStreamBytes;
  static constexpr int kBytes = kWarps * kStages * kStageBytes;

  // Called by one lane: copies `bytes` of each stream into the stage at `to`; they complete at barrier `full`.
  static __device__ __forceinline__ void Copy(uint32_t to, uint32_t full, const uint8_t* from0, const uint8_t* from1,
                                              uint32_t bytes, uint64_t policy) {
    BarrierExpect(full, 2 * bytes);
    BulkLoad(to, from0, bytes, full, policy);
    BulkLoad(to + kStreamBytes, from1, bytes, full, policy);
  }
};

// An instance of the kernel. Wide: chunks of up to two blocks of columns, else of one. Two teams are in one block,
// instead of two blocks on a multiprocessor, because two blocks with one item more than the others could share a
// multiprocessor. That matters if blocks have few items.
template <WeightFormat kFormat, int Planes, bool kIsUp, bool kIsWide, int Teams>
struct GemmKind {
  using R = Ring<kFormat>;
  static constexpr WeightFormat F = kFormat;
  static constexpr bool Up = kIsUp, Wide = kIsWide;
  static constexpr int kPlanes = Planes, kTeams = Teams, kThreads = kTeamThreads * Teams;
  static constexpr int kMaxBlocks = Wide ? 2 : 1, kTokens = BlockTokens(Planes);
  static constexpr bool kPair = Planes == 2;
  static constexpr bool kKnows = Up && Teams == 2;  // an expert may be known before the wait
  static constexpr int kTerms = kPair ? 1 : Planes;
  static constexpr int kTeamBytes = R::kBytes + kPartialFloats * 4 + 256;
};

template <class G>
struct Team {
  using R = typename G::R;
  int team, warp, lane, g, t;
  float* partial;
  uint8_t* zeros;  // 256 bytes
  uint16_t* shared_x;
  uint32_t ring, ring_full;       // of the warp: its stages, their barriers
  uint32_t sums_full, sums_free;  // of the team: barriers of the two sets of partial sums

  // Through shuffles: uniform in all lanes.
  __device__ __forceinline__ explicit Team(uint8_t* shared) {
    team = G::kTeams == 1 ? 0 : __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kTeamThreads, 0);
    uint8_t* team_shared = shared + team * G::kTeamBytes;
    partial = reinterpret_cast<float*>(team_shared + R::kBytes);
    uint64_t* barriers = reinterpret_cast<uint64_t*>(team_shared + R::kBytes + kPartialFloats * 4);
    zeros = shared + G::kTeams * G::kTeamBytes;
    shared_x = reinterpret_cast<uint16_t*>(zeros + 256);
    warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32 % kWarps, 0);
    lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t team_at = __shfl_sync(0xFFFFFFFFu, SharedAddress(team_shared), 0);
    ring = team_at + warp * R::kStages * R::kStageBytes;
    ring_full = team_at + R::kBytes + kPartialFloats * 4 + 8 * warp * R::kStages;
    sums_full = SharedAddress(barriers + kWarps * R::kStages), sums_free = sums_full + 16;
  }

  __device__ __forceinline__ void Init() const {
    if (lane == 0) {
      for (int s = 0; s < R::kStages; ++s) BarrierInit(ring_full + 8 * s, 1);
      if (warp == 0) {  // every thread that stores sums, every lane that reads them
        for (int s = 0; s < 2; ++s) BarrierInit(sums_full + 8 * s, kTeamThreads), BarrierInit(sums_free + 8 * s, 32);
      }
      BarrierInitFence();
      FenceAsyncShared();
    }
    if (threadIdx.x < 64) reinterpret_cast<uint32_t*>(zeros)[threadIdx.x] = 0;
  }
};

// The launch's chunks and rows; the warp's tiles of K.
struct Extent {
  int num_chunks, row_tiles, rows, k_tiles, k_begin, k_end;
};

// The items of a team.
struct WorkList {
  Cursor item, rest;
  int num_items,
      known_items;  // known_items: of an expert known before the launch; first these, then the items from `rest`
};

// If all items cost the same: equal numbers.
template <class G>
__device__ __forceinline__ WorkList CutEqually(const GemmArgs& a, const Extent& e, int team) {
  WorkList work = {};
  const unsigned total = static_cast<unsigned>(e.num_chunks) * static_cast<unsigned>(e.rows);
  const unsigned each = total / gridDim.x, more = total % gridDim.x;
  const unsigned of_block = each + (blockIdx.x < more ? 1 : 0),
                 before = G::kTeams == 2 && team == 1 ? (of_block + 1) / 2 : 0;
  const unsigned begin = each * blockIdx.x + min(blockIdx.x, more);
  work.num_items = static_cast<int>(G::kTeams == 1 ? of_block : team == 0 ? (of_block + 1) / 2 : of_block / 2);
  const unsigned row_count = static_cast<unsigned>(e.rows);
  const auto at = [&](unsigned i) { return Cursor{static_cast<int>(i / row_count), static_cast<int>(i % row_count)}; };
  if (G::kKnows && a.always >= 0 && each >= (row_count + gridDim.x - 1) / gridDim.x) {
    const unsigned first = row_count * blockIdx.x / gridDim.x, known = row_count * (blockIdx.x + 1) / gridDim.x - first;
    work.known_items = static_cast<int>(known) - static_cast<int>(before);
    work.rest = at(row_count + begin - first);
    work.item = work.known_items > 0 ? Cursor{0, static_cast<int>(first + before)}
                                     : at(row_count + begin - first + before - known);
  } else {
    work.item = at(begin + before);
  }
  return work;
}

// Otherwise: equal costs.
template <class G>
__device__ __forceinline__ WorkList CutByCost(const GemmArgs& a, const Extent& e, int lane) {
  WorkList work = {};
  const unsigned parts = gridDim.x, part = blockIdx.x;
  const unsigned total = static_cast<unsigned>(a.plan[1]) * static_cast<unsigned>(e.rows), each = total / parts,
                 more = total % parts;
  const unsigned begin = each * part + min(part, more), end = begin + each + (part < more ? 1 : 0);
  work.item = Locate<G::kPlanes>(a, e.num_chunks, e.rows, begin, lane);
  const Cursor last = end == total ? Cursor{e.num_chunks, 0} : Locate<G::kPlanes>(a, e.num_chunks, e.rows, end, lane);
  work.num_items = (last.chunk - work.item.chunk) * e.rows + last.row - work.item.row;
  return work;
}

template <class G>
__device__ __forceinline__ void Advance(Cursor& cursor, int& known, const WorkList& work, const Extent& e) {
  if (G::kKnows && --known == 0) {
    cursor = work.rest;
  } else {
    cursor.Next(e.rows);
  }
}

// A warp's requests for weights, by stage of its ring, across the ends of items.
template <class G>
struct Requests {
  using R = typename G::R;
  static constexpr int kTile = static_cast<int>(TileBytes(G::F));
  const GemmArgs& a;
  const Team<G>& team;
  const WorkList& work;
  const Extent& e;
  const ChunkCache& cache;
  Cursor ahead;
  int items, known, k, stage = 0;
  bool pointed = false;  // from0 and from1 point at item `ahead`
  const uint8_t *from0 = nullptr, *from1 = nullptr;
  int tile_bytes = R::kTileBytes;  // of item `ahead`, if experts may have two formats

  __device__ __forceinline__ void PointAt(const uint8_t* codes0, const uint8_t* codes1, bool is_beside) {
    if constexpr (HasFormatBeside(G::F)) tile_bytes = is_beside ? R::kTileBytes : kTile;
    const int tile0 = G::Up ? ahead.row : 2 * ahead.row,
              tile1 = G::Up ? ahead.row : min(2 * ahead.row + 1, e.row_tiles - 1);
    const int bytes = HasFormatBeside(G::F) ? tile_bytes : kTile;
    from0 = codes0 + (int64_t{tile0} * e.k_tiles + e.k_begin) * bytes;
    from1 = codes1 + (int64_t{tile1} * e.k_tiles + e.k_begin) * bytes;
    pointed = true;
  }
  __device__ __forceinline__ void Point() {
    if (items == 0) return;
    ChunkCache far = cache;
    if (ahead.chunk - cache.first >= 32) FillCache<G::F, G::Up>(a, ahead.chunk, e.num_chunks, team.lane, far);
    const int at = ahead.chunk - far.first;
    PointAt(ShufflePointer(far.codes0, at), ShufflePointer(far.codes1, at),
            HasFormatBeside(G::F) && __shfl_sync(0xFFFFFFFFu, static_cast<int>(far.beside), at) != 0);
  }
  __device__ __forceinline__ void Copy() {
    const int bytes = HasFormatBeside(G::F) ? tile_bytes : kTile;
    if (ElectLane()) {
      R::Copy(team.ring + stage * R::kStageBytes, team.ring_full + 8 * stage, from0, from1,
              min(R::kTiles, e.k_end - k) * bytes, a.policy);
    }
    from0 += R::kTiles * bytes, from1 += R::kTiles * bytes;
    stage ^= 1;
    k += R::kTiles;
    if (k >= e.k_end) {
      k = e.k_begin;
      --items;
      Advance<G>(ahead, known, work, e);
      pointed = false;
      if (!G::kKnows) Point();
    }
  }
  // Requests the next stage.
  __device__ __forceinline__ void Next() {
    if (items == 0) return;
    Copy();
    if (G::kKnows && !pointed) Point();
  }
};

}  // namespace dsv4::experts
