// Products of grouped tokens with their experts' packed tiles (ops/pack_weight/pack_weight.h), up to 4 or 8 tokens at a time.
//
// Inputs are two BF16 planes each. Both are columns of the product, added at its end: of up to four tokens columns 0..3 are
// the first planes and 4..7 the second ones, of up to eight there are two blocks of eight columns. With three planes
// (ExecContext::f32_inputs) up to 8 or 16 tokens' planes are multiplied one after the other.
//
// Work is a list of (chunk, row pair): a chunk is an expert with some of its (token, slot) pairs, a row pair two tiles
// of 16 rows that share their input: gate and up, or two neighbouring row tiles of down. The persistent grid cuts the
// list into equal contiguous parts. In a block a team of eight warps, or two teams, cut K. Each warp streams its tiles through a ring of bulk copies of
// its own (PTX ISA, "cp.async.bulk"), which runs ahead over the ends of items, decodes them in registers (expert_tiles.cuh) and
// multiplies with mma.m16n8k16, weights as the 16 rows, inputs as the 8 columns. One warp, another for every item, adds
// the warps' sums in order, so a result depends on K and nothing else: not on T, the grouping, or the grid.
#pragma once

#include <type_traits>

#include "device/barrier.cuh"
#include "device/launch.cuh"
#include "ops/experts/expert_items.cuh"
#include "ops/experts/expert_rows.cuh"
#include "ops/experts/expert_tiles.cuh"
#include "ops/swiglu/swiglu_cuda.cuh"

namespace dsv4::experts {

inline constexpr int kWarps = 8, kTeamThreads = kWarps * 32;  // of a team
inline constexpr int kColumnStride = 20;                       // floats between columns of partial sums: no bank conflicts
inline constexpr int kPartial = 2 * 8 * kColumnStride;         // one warp's sums: two row tiles, eight columns
inline constexpr int kPartialFloats = 2 * kWarps * kPartial;   // two sets, used in turn

template <WeightFormat F>
struct Ring {
  static constexpr int kTileBytes = static_cast<int>(TileBytes(F));
  static constexpr int kStep = kTileBytes == 576 ? 2 : 1;           // tiles in registers at a time
  static constexpr int kTiles = kTileBytes == 576 ? 4 : kTileBytes == 1024 ? 2 : 1;  // of each stream in a stage
  static constexpr int kStages = 2;
  static constexpr int kStreamBytes = kTiles * kTileBytes;
  static constexpr int kStageBytes = 2 * kStreamBytes;
  static constexpr int kBytes = kWarps * kStages * kStageBytes;

  // By one lane: `bytes` of each stream into the stage at `to`, which are then there at barrier `full`.
  static __device__ __forceinline__ void Copy(uint32_t to, uint32_t full, const uint8_t* from0, const uint8_t* from1, uint32_t bytes, uint64_t policy) {
    BarrierExpect(full, 2 * bytes);
    BulkLoad(to, from0, bytes, full, policy);
    BulkLoad(to + kStreamBytes, from1, bytes, full, policy);
  }
};

template <WeightFormat F>
inline int64_t GemmSharedBytes(int teams, bool x_in_shared, int64_t k) {
  return teams * (Ring<F>::kBytes + kPartialFloats * 4 + 256) + 256 + (x_in_shared ? PaddedColumns(k) * 4 : 0);
}

// x[at .. at + 3], zeros behind the row's end.
__device__ __forceinline__ float4 LoadRowPart(const float* x, int at, int k) {
  if (at + 3 < k && reinterpret_cast<uintptr_t>(x) % 16 == 0) return *reinterpret_cast<const float4*>(x + at);
  return {at < k ? x[at] : 0.0f, at + 1 < k ? x[at + 1] : 0.0f, at + 2 < k ? x[at + 2] : 0.0f, at + 3 < k ? x[at + 3] : 0.0f};
}

// Wide: chunks of up to two blocks of columns, else of one. Two teams in one block rather than two blocks on a multiprocessor, of
// which two with an item more than others may share one; that matters where blocks have few items.
template <WeightFormat F, int Planes, bool Up, bool Wide, int kTeams>
__global__ void __launch_bounds__(kTeamThreads* kTeams, Planes == 2 ? 2 / kTeams : 1) ExpertGemmKernel(const GemmArgs a) {
  using R = Ring<F>;
  constexpr int kThreads = kTeamThreads * kTeams;
  constexpr int kMaxBlocks = Wide ? 2 : 1, kTokens = BlockTokens(Planes);
  constexpr bool kPair = Planes == 2;
  constexpr bool kKnows = Up && kTeams == 2;  // that an expert may be known before the wait
  constexpr int kTerms = kPair ? 1 : Planes;
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kTeamBytes = R::kBytes + kPartialFloats * 4 + 256;
  // By way of a shuffle: the same in all lanes.
  const int team = kTeams == 1 ? 0 : __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kTeamThreads, 0);
  uint8_t* team_shared = shared + team * kTeamBytes;
  float* partial = reinterpret_cast<float*>(team_shared + R::kBytes);
  uint64_t* barriers = reinterpret_cast<uint64_t*>(team_shared + R::kBytes + kPartialFloats * 4);
  uint8_t* zeros = shared + kTeams * kTeamBytes;  // 256 bytes
  uint16_t* shared_x = reinterpret_cast<uint16_t*>(zeros + 256);
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32 % kWarps, 0), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t team_at = __shfl_sync(0xFFFFFFFFu, SharedAddress(team_shared), 0);
  const uint32_t ring_full = team_at + R::kBytes + kPartialFloats * 4 + 8 * warp * R::kStages;
  const uint32_t sums_full = SharedAddress(barriers + kWarps * R::kStages), sums_free = sums_full + 16;
  if (lane == 0) {
    for (int s = 0; s < R::kStages; ++s) BarrierInit(ring_full + 8 * s, 1);
    if (warp == 0) {
      for (int s = 0; s < 2; ++s) BarrierInit(sums_full + 8 * s, kTeamThreads), BarrierInit(sums_free + 8 * s, 32);  // every lane that stored or read
    }
    BarrierInitFence();
    FenceAsyncShared();
  }
  if (threadIdx.x < 64) reinterpret_cast<uint32_t*>(zeros)[threadIdx.x] = 0;
  if constexpr (Up) PrefetchMatrices<kThreads>(a);
  __syncthreads();
  const bool one_token = a.experts != nullptr;
  if (Up && !one_token) WaitForPrevious();

  const int num_chunks = one_token ? a.num_slots : a.plan[0];
  const int row_tiles = (a.n + 15) / 16, rows = Up ? row_tiles : (row_tiles + 1) / 2;
  const int k_tiles = (a.k + 63) / 64;
  Cursor item, rest = {};
  int num_items, known_items = 0;  // known_items: of an expert known beforehand; they come first, then those from `rest` on
  if (kTeams == 2 || one_token || a.plan[2] == 0) {  // all cost the same
    const unsigned total = static_cast<unsigned>(num_chunks) * static_cast<unsigned>(rows);
    const unsigned each = total / gridDim.x, more = total % gridDim.x;
    const unsigned of_block = each + (blockIdx.x < more ? 1 : 0), before = kTeams == 2 && team == 1 ? (of_block + 1) / 2 : 0;
    const unsigned begin = each * blockIdx.x + min(blockIdx.x, more);
    num_items = static_cast<int>(kTeams == 1 ? of_block : team == 0 ? (of_block + 1) / 2 : of_block / 2);
    const unsigned row_count = static_cast<unsigned>(rows);
    const auto at = [&](unsigned i) { return Cursor{static_cast<int>(i / row_count), static_cast<int>(i % row_count)}; };
    if (kKnows && a.always >= 0 && each >= (row_count + gridDim.x - 1) / gridDim.x) {
      const unsigned first = row_count * blockIdx.x / gridDim.x, known = row_count * (blockIdx.x + 1) / gridDim.x - first;
      known_items = static_cast<int>(known) - static_cast<int>(before);
      rest = at(row_count + begin - first);
      item = known_items > 0 ? Cursor{0, static_cast<int>(first + before)} : at(row_count + begin - first + before - known);
    } else {
      item = at(begin + before);
    }
  } else {
    const unsigned parts = gridDim.x, part = blockIdx.x;
    const unsigned total = static_cast<unsigned>(a.plan[1]) * static_cast<unsigned>(rows), each = total / parts, more = total % parts;
    const unsigned begin = each * part + min(part, more), end = begin + each + (part < more ? 1 : 0);
    item = Locate<Planes>(a, num_chunks, rows, begin, lane);
    const Cursor last = end == total ? Cursor{num_chunks, 0} : Locate<Planes>(a, num_chunks, rows, end, lane);
    num_items = (last.chunk - item.chunk) * rows + last.row - item.row;
  }
  const auto advance = [&](Cursor& cursor, int& known) {
    if (kKnows && --known == 0) {
      cursor = rest;
    } else {
      cursor.Next(rows);
    }
  };
  const int k_begin = k_tiles * warp / kWarps, k_end = k_tiles * (warp + 1) / kWarps;

  // ---- requests ----
  ChunkCache cache = {};
  Cursor ahead = item;
  int ahead_items = k_begin < k_end ? num_items : 0, ahead_known = known_items, ahead_k = k_begin, ahead_stage = 0;
  bool pointed = false;  // from0 and from1 are at item `ahead`
  const uint8_t *from0 = nullptr, *from1 = nullptr;
  const uint32_t ring = team_at + warp * R::kStages * R::kStageBytes;
  const auto point_at = [&](const uint8_t* codes0, const uint8_t* codes1) {
    const int tile0 = Up ? ahead.row : 2 * ahead.row, tile1 = Up ? ahead.row : min(2 * ahead.row + 1, row_tiles - 1);
    from0 = codes0 + (int64_t{tile0} * k_tiles + k_begin) * R::kTileBytes;
    from1 = codes1 + (int64_t{tile1} * k_tiles + k_begin) * R::kTileBytes;
    pointed = true;
  };
  const auto point = [&] {
    if (ahead_items == 0) return;
    ChunkCache far = cache;
    if (ahead.chunk - cache.first >= 32) FillCache<Up>(a, ahead.chunk, num_chunks, lane, far);
    const int at = ahead.chunk - far.first;
    point_at(ShufflePointer(far.codes0, at), ShufflePointer(far.codes1, at));
  };
  const auto copy = [&] {
    if (ElectLane()) {
      R::Copy(ring + ahead_stage * R::kStageBytes, ring_full + 8 * ahead_stage, from0, from1, min(R::kTiles, k_end - ahead_k) * R::kTileBytes, a.policy);
    }
    from0 += R::kStreamBytes, from1 += R::kStreamBytes;
    ahead_stage ^= 1;
    ahead_k += R::kTiles;
    if (ahead_k >= k_end) {
      ahead_k = k_begin;
      --ahead_items;
      advance(ahead, ahead_known);
      pointed = false;
      if (!kKnows) point();
    }
  };
  const auto request = [&] {
    if (ahead_items == 0) return;
    copy();
    if (kKnows && !pointed) point();
  };
  static_assert(R::kStages == 2);
  int requested = 0;
  if constexpr (kKnows) {
    if (known_items > 0 && ahead_items > 0) {
      const ExpertMatrices& m = a.matrices[a.always];
      point_at(m.gate.codes, m.up.codes);
      for (; requested < R::kStages && pointed; ++requested) copy();
    }
  }
  if (Up && one_token) WaitForPrevious();
  // After Up's wait, so that Down starts when the plan is complete and may request the experts' weights before its own.
  AllowNext();

  // One token: its row, requested before the weights, behind which it would queue.
  constexpr int kRowLoads = kTeams == 2 ? 4 : 8;
  float4 row_part[kRowLoads];
  if (Up && a.x != nullptr) {
#pragma unroll
    for (int u = 0; u < kRowLoads; ++u) row_part[u] = LoadRowPart(a.x, 4 * (u * kThreads + static_cast<int>(threadIdx.x)), a.k);
  }
  FillCache<Up>(a, kKnows && known_items > 0 ? 0 : item.chunk, num_chunks, lane, cache);
  if (!kKnows || !pointed) point();
  for (; requested < R::kStages; ++requested) request();

  if constexpr (!Up) WaitForPrevious();
  if (Up && a.x != nullptr) {
    const int padded = static_cast<int>(PaddedColumns(a.k));
    uint2* to = reinterpret_cast<uint2*>(shared_x);
    for (int first = 0; first < padded; first += 4 * kRowLoads * kThreads) {
#pragma unroll
      for (int u = 0; u < kRowLoads; ++u) {
        const int at = first + 4 * (u * kThreads + static_cast<int>(threadIdx.x));
        const float4 v = first == 0 ? row_part[u] : LoadRowPart(a.x, at, a.k);
        const Bf16Pairs low = SplitPairs(v.x, v.y), high = SplitPairs(v.z, v.w);
        if (at < padded) to[at / 4] = make_uint2(low.hi, high.hi), to[(padded + at) / 4] = make_uint2(low.lo, high.lo);
      }
    }
    __syncthreads();
  }

  // ---- products ----
  int known_chunk = -1, stage = 0, parity = 0, turn = 0;  // turn: blocks of eight columns summed so far
  Chunk chunk{};
  float scale0 = 0, scale1 = 0;
  const uint8_t* row[kMaxBlocks];  // the lane's column of each block of eight; zeros where there is none
  int row_step[kMaxBlocks];
  int64_t plane_step[kMaxBlocks];
  const int64_t plane_bytes = a.plane_elements * 2, row_bytes = PaddedColumns(a.k) * 2;
  const auto pair_of = [&](int column) { return a.experts != nullptr ? chunk.begin + column : a.pairs[chunk.begin + column]; };

  // ---- the warps' sums, in order; by one warp, another one every turn ----
  struct {
    int turn, columns, begin, row;
    float scale0, scale1;
  } due = {-1, 0, 0, 0, 0, 0};
  const auto add_up = [&] {
    if (due.turn < 0) return;
    const int set = due.turn % 2, phase = due.turn / 2 % 2, out_row = lane % 16;
    due.turn = -1;
    BarrierWait(sums_full + 8 * set, phase);
    for (int column = lane / 16; column < due.columns; column += 2) {
      const int pair = a.experts != nullptr ? due.begin + column : a.pairs[due.begin + column];
      const float* from = partial + set * kWarps * kPartial + column * kColumnStride + out_row;
      float first = 0, second = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        first += from[w * kPartial];
        second += from[w * kPartial + 8 * kColumnStride];
      }
      first *= due.scale0;
      second *= due.scale1;
      if constexpr (Up) {
        const int f = 16 * due.row + out_row;
        const float h = f < a.n ? SwigluValue(first, second, a.limit) * a.weights[pair] : 0.0f;
        if (a.hidden != nullptr) {
          if (f < a.n) a.hidden[int64_t{pair} * 2 * a.n + f] = h;
        } else {
          const int padded = static_cast<int>(PaddedColumns(a.n));
          uint16_t part[Planes];
          SplitBf16<Planes>(h, part);
#pragma unroll
          for (int p = 0; p < Planes; ++p) {
            uint16_t* to = a.hidden_planes + p * a.hidden_plane_elements + int64_t{pair} * padded;
            to[f] = part[p];
            if (due.row == rows - 1) {
              for (int c = f + 16; c < padded; c += 16) to[c] = 0;
            }
          }
        }
      } else {
        float* to = a.outputs + int64_t{pair} * a.n;
        const int f = 32 * due.row + out_row;
        if (f < a.n) to[f] = first;
        if (f + 16 < a.n) to[f + 16] = second;
      }
    }
    BarrierArrive(sums_free + 8 * set);
  };

  for (int i = 0; i < num_items; ++i, advance(item, known_items)) {
    if (item.chunk != known_chunk) {
      known_chunk = item.chunk;
      if (item.chunk - cache.first >= 32) FillCache<Up>(a, item.chunk, num_chunks, lane, cache);
      const int at = item.chunk - cache.first;
      chunk.expert = __shfl_sync(0xFFFFFFFFu, cache.chunk.expert, at);
      chunk.begin = __shfl_sync(0xFFFFFFFFu, cache.chunk.begin, at);
      chunk.count = __shfl_sync(0xFFFFFFFFu, cache.chunk.count, at);
      scale0 = __shfl_sync(0xFFFFFFFFu, cache.scale0, at) * MmaFactor(F);
      scale1 = __shfl_sync(0xFFFFFFFFu, cache.scale1, at) * MmaFactor(F);
      const bool one_block = chunk.count <= kTokens;
#pragma unroll
      for (int b = 0; b < kMaxBlocks; ++b) {
        row[b] = zeros + 32 * t;
        row_step[b] = 0, plane_step[b] = 0;
        const int column = !kPair ? 8 * b + g : one_block ? g % 4 : g, plane = !kPair ? 0 : one_block ? g / 4 : b;
        if (column >= chunk.count) continue;
        row_step[b] = R::kStep * 128, plane_step[b] = plane_bytes;
        const int pair = pair_of(column);
        const int64_t r = a.row_is_token ? pair / a.num_slots : pair;
        row[b] = (Up && a.x != nullptr ? reinterpret_cast<const uint8_t*>(shared_x) + plane * row_bytes
                                       : reinterpret_cast<const uint8_t*>(a.planes) + plane * plane_bytes + r * row_bytes) +
                 32 * t + k_begin * 128;
      }
    }

    float sum[2][kMaxBlocks][4] = {};  // stream, block of columns
    TileScales<F> scales[2];
    if constexpr (HasScalesBeside(F)) {
      const ExpertMatrices& m = a.matrices[chunk.expert];
      const int tile0 = Up ? item.row : 2 * item.row, tile1 = Up ? item.row : min(2 * item.row + 1, row_tiles - 1);
      scales[0].Row((Up ? m.gate : m.down).block_scale, tile0, a.k);
      scales[1].Row((Up ? m.up : m.down).block_scale, tile1, a.k);
    }
    const auto multiply = [&](auto blocks) {
      constexpr int kBlocks = decltype(blocks)::value;
      const uint8_t* column[kBlocks];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) column[b] = row[b];
      for (int k = k_begin; k < k_end; k += R::kTiles) {
        const uint32_t codes = ring + stage * R::kStageBytes + 16 * lane, tile_scales = codes - 14 * lane + 512;
#pragma unroll
        for (int first = 0; first < R::kTiles; first += R::kStep) {
          if (first > 0 && k + first >= k_end) break;
          Columns columns[R::kStep][kBlocks][kTerms];
          LaneTile<F> raw[R::kStep][2];
          const auto load_columns = [&](int j) {
#pragma unroll
            for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
              for (int p = 0; p < kTerms; ++p) columns[j][b][p] = LoadColumns(column[b] + p * plane_step[b] + j * 128);
            }
          };
          // One block: the columns of all tiles are on their way before the wait.
          constexpr bool kEarly = kBlocks * kTerms == 1;
          if (kEarly) {
#pragma unroll
            for (int j = 0; j < R::kStep; ++j) {
              if (j == 0 || k + first + j < k_end) load_columns(j);
            }
          }
          if (first == 0) BarrierWait(ring_full + 8 * stage, parity);
#pragma unroll
          for (int j = 0; j < R::kStep; ++j) {
            const int at = (first + j) * R::kTileBytes;
            raw[j][0] = LoadSharedTile<F>(codes + at, tile_scales + at);
            raw[j][1] = LoadSharedTile<F>(codes + at + R::kStreamBytes, tile_scales + at + R::kStreamBytes);
          }
#pragma unroll
          for (int j = 0; j < R::kStep; ++j) {
            if (j == 0 || k + first + j < k_end) {
              if (!kEarly) load_columns(j);
              MultiplyTiles<F, kBlocks, kTerms, kTeams == 1>(raw[j], columns[j], sum, scales, k + first + j);
            }
          }
#pragma unroll
          for (int b = 0; b < kBlocks; ++b) column[b] += row_step[b];
        }
        __syncwarp();
        request();
        parity ^= stage;
        stage ^= 1;
      }
    };
    const bool wide = Wide && chunk.count > kTokens;
    if (wide) {
      multiply(std::integral_constant<int, kMaxBlocks>{});
    } else {
      multiply(std::integral_constant<int, 1>{});
    }

    if constexpr (kPair) {  // the first planes' columns: plus the second ones'
#pragma unroll
      for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          sum[s][0][q] += wide ? sum[s][kMaxBlocks - 1][q] : __shfl_xor_sync(0xFFFFFFFFu, sum[s][0][q], 2);
        }
      }
    }

    // ---- sums into shared memory; those of the turn before are complete by now, as a rule ----
#pragma unroll
    for (int b = 0; b < kMaxBlocks; ++b) {
      if (b == 1 && (kPair || !wide)) break;
      add_up();
      const int columns = min(chunk.count - 8 * b, 8), set = turn % 2, phase = turn / 2 % 2;
      BarrierWait(sums_free + 8 * set, phase ^ 1);
      float* mine = partial + (set * kWarps + warp) * kPartial + 2 * t * kColumnStride + g;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (2 * t + c < columns) {
#pragma unroll
          for (int s = 0; s < 2; ++s) {
            mine[(8 * s + c) * kColumnStride] = sum[s][b][c];
            mine[(8 * s + c) * kColumnStride + 8] = sum[s][b][2 + c];
          }
        }
      }
      BarrierArrive(sums_full + 8 * set);
      if (turn % kWarps == warp) due = {turn, columns, chunk.begin + 8 * b, item.row, scale0, scale1};
      ++turn;
    }
  }
  add_up();
}

}  // namespace dsv4::experts
