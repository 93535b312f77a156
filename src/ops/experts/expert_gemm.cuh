// Products of grouped tokens with their experts' packed tiles (ops/pack_weight/pack_weight.h), up to 4 or 8 tokens at a
// time.
//
// Inputs are two BF16 planes each. Both are columns of the product, added at its end. With up to four tokens columns
// 0..3 are the first planes and 4..7 the second; with up to eight there are two blocks of eight columns. With three
// planes (ExecContext::f32_inputs) the planes of up to 8 or 16 tokens are multiplied one after the other.
//
// The work is a list of (chunk, row pair). A chunk is an expert with some of its (token, choice) pairs. A row pair is
// two tiles of 16 rows that share their input: gate and up, or two neighbouring row tiles of down. The blocks of the
// persistent grid divide the list into equal contiguous parts. In a block a team of eight warps, or two teams, divide
// K. Each warp streams its tiles through its own ring of bulk copies (PTX ISA, "cp.async.bulk"), which runs ahead
// across the ends of items (expert_team.cuh). It decodes them in registers (expert_tiles.cuh) and multiplies with
// mma.m16n8k16, weights as the 16 rows, inputs as the 8 columns. One warp, a different one for every item, adds the
// warps' sums in order (expert_sums.cuh). So a result depends on K only: not on T, the grouping, or the grid.
#pragma once

#include "ops/experts/expert_rows.cuh"
#include "ops/experts/expert_sums.cuh"
#include "ops/experts/expert_team.cuh"

namespace dsv4::experts {

template <WeightFormat F>
inline int64_t GemmSharedBytes(int teams, bool x_in_shared, int64_t k) {
  return teams * (Ring<F>::kBytes + kPartialFloats * 4 + 256) + 256 + (x_in_shared ? PaddedColumns(k) * 4 : 0);
}

// x[at .. at + 3], zeros past the row's end.
__device__ __forceinline__ float4 LoadRowPart(const float* x, int at, int k) {
  if (at + 3 < k && reinterpret_cast<uintptr_t>(x) % 16 == 0) return *reinterpret_cast<const float4*>(x + at);
  return {at < k ? x[at] : 0.0f, at + 1 < k ? x[at + 1] : 0.0f, at + 2 < k ? x[at + 2] : 0.0f,
          at + 3 < k ? x[at + 3] : 0.0f};
}

// One token's row, for the whole block: requested early, then written to shared memory as planes.
template <class G>
struct OneRow {
  static constexpr int kLoads = G::kTeams == 2 ? 4 : 8;
  float4 part[kLoads];

  __device__ __forceinline__ void Ask(const GemmArgs& a) {
#pragma unroll
    for (int u = 0; u < kLoads; ++u)
      part[u] = LoadRowPart(a.x, 4 * (u * G::kThreads + static_cast<int>(threadIdx.x)), a.k);
  }
  __device__ __forceinline__ void Stage(const GemmArgs& a, uint16_t* shared_x) const {
    const int padded = static_cast<int>(PaddedColumns(a.k));
    uint2* to = reinterpret_cast<uint2*>(shared_x);
    for (int first = 0; first < padded; first += 4 * kLoads * G::kThreads) {
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        const int at = first + 4 * (u * G::kThreads + static_cast<int>(threadIdx.x));
        const float4 v = first == 0 ? part[u] : LoadRowPart(a.x, at, a.k);
        const Bf16Pairs low = SplitPairs(v.x, v.y), high = SplitPairs(v.z, v.w);
        if (at < padded) to[at / 4] = make_uint2(low.hi, high.hi), to[(padded + at) / 4] = make_uint2(low.lo, high.lo);
      }
    }
    __syncthreads();
  }
};

// The chunk whose rows are multiplied, and the addresses of the lane's columns of its inputs.
template <class G>
struct ChunkInputs {
  int64_t plane_bytes, row_bytes;  // of the inputs
  int known_chunk = -1;
  Chunk chunk{};
  bool beside = false;  // the chunk's expert has tiles of the other format
  float scale0 = 0, scale1 = 0;
  const uint8_t* row[G::kMaxBlocks];  // the lane's column of each block of eight; zeros if there is none
  int row_step[G::kMaxBlocks];
  int64_t plane_step[G::kMaxBlocks];

  __device__ __forceinline__ void Take(const GemmArgs& a, const Team<G>& team, const Extent& e, int number,
                                       ChunkCache& cache) {
    known_chunk = number;
    if (number - cache.first >= 32) FillCache<G::F, G::Up>(a, number, e.num_chunks, team.lane, cache);
    const int at = number - cache.first;
    chunk.expert = __shfl_sync(0xFFFFFFFFu, cache.chunk.expert, at);
    chunk.begin = __shfl_sync(0xFFFFFFFFu, cache.chunk.begin, at);
    chunk.count = __shfl_sync(0xFFFFFFFFu, cache.chunk.count, at);
    if (HasFormatBeside(G::F)) beside = __shfl_sync(0xFFFFFFFFu, static_cast<int>(cache.beside), at) != 0;
    scale0 = SumScale<G::F>(__shfl_sync(0xFFFFFFFFu, cache.scale0, at), beside);
    scale1 = SumScale<G::F>(__shfl_sync(0xFFFFFFFFu, cache.scale1, at), beside);
    const bool one_block = chunk.count <= G::kTokens;
#pragma unroll
    for (int b = 0; b < G::kMaxBlocks; ++b) {
      row[b] = team.zeros + 32 * team.t;
      row_step[b] = 0, plane_step[b] = 0;
      const int column = !G::kPair ? 8 * b + team.g : one_block ? team.g % 4 : team.g;
      const int plane = !G::kPair ? 0 : one_block ? team.g / 4 : b;
      if (column >= chunk.count) continue;
      row_step[b] = G::R::kStep * 128, plane_step[b] = plane_bytes;
      const int pair = a.experts != nullptr ? chunk.begin + column : a.pairs[chunk.begin + column];
      const int64_t r = a.row_is_token ? pair / a.num_slots : pair;
      row[b] = (G::Up && a.x != nullptr
                    ? reinterpret_cast<const uint8_t*>(team.shared_x) + plane * row_bytes
                    : reinterpret_cast<const uint8_t*>(a.planes) + plane * plane_bytes + r * row_bytes) +
               32 * team.t + e.k_begin * 128;
    }
  }
};

// The stage of the warp's ring that is multiplied next.
struct RingPlace {
  int stage = 0, parity = 0;
};

// Multiplies tiles first .. first + kStep of a stage of the ring with kBlocks blocks of columns. The stage's tiles
// begin at column tile stage_k of K. With the first tiles it waits for the stage. F: the tiles' format, G::F or
// FormatBeside(G::F).
template <class G, WeightFormat F, int kBlocks>
__device__ __forceinline__ void MultiplyStep(const Team<G>& team, const Extent& e, const RingPlace& place, int first,
                                             int stage_k, const uint8_t* const (&column)[kBlocks],
                                             const int64_t (&plane_step)[G::kMaxBlocks],
                                             const TileScales<F> (&scales)[2], float (&sum)[2][G::kMaxBlocks][4]) {
  using R = typename G::R;
  constexpr int kTileBytes = static_cast<int>(TileBytes(F));
  const uint32_t codes = team.ring + place.stage * R::kStageBytes + 16 * team.lane,
                 tile_scales = codes + (ScalesOfLane(F, team.lane) - 16 * team.lane);
  Columns columns[R::kStep][kBlocks][G::kTerms];
  LaneTile<F> raw[R::kStep][2];
  const auto load_columns = [&](int j) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int p = 0; p < G::kTerms; ++p) columns[j][b][p] = LoadColumns(column[b] + p * plane_step[b] + j * 128);
    }
  };
  // With one block the columns of all tiles are in flight before the wait.
  constexpr bool kEarly = kBlocks * G::kTerms == 1;
  if (kEarly) {
#pragma unroll
    for (int j = 0; j < R::kStep; ++j) {
      if (j == 0 || stage_k + first + j < e.k_end) load_columns(j);
    }
  }
  if (first == 0) BarrierWait(team.ring_full + 8 * place.stage, place.parity);
#pragma unroll
  for (int j = 0; j < R::kStep; ++j) {
    const int at = (first + j) * kTileBytes;
    raw[j][0] = LoadSharedTile<F>(codes + at, tile_scales + at);
    raw[j][1] = LoadSharedTile<F>(codes + at + R::kStreamBytes, tile_scales + at + R::kStreamBytes);
  }
#pragma unroll
  for (int j = 0; j < R::kStep; ++j) {
    if (j == 0 || stage_k + first + j < e.k_end) {
      if (!kEarly) load_columns(j);
      MultiplyTiles<F, kBlocks, G::kTerms, G::kTeams == 1>(raw[j], columns[j], sum, scales, stage_k + first + j);
    }
  }
}

// Multiplies the warp's part of K of a row pair.
template <class G, WeightFormat F, int kBlocks>
__device__ __forceinline__ void MultiplyRow(const Team<G>& team, const Extent& e, Requests<G>& requests,
                                            RingPlace& place, const ChunkInputs<G>& in,
                                            const TileScales<F> (&scales)[2], float (&sum)[2][G::kMaxBlocks][4]) {
  using R = typename G::R;
  const uint8_t* column[kBlocks];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) column[b] = in.row[b];
  for (int k = e.k_begin; k < e.k_end; k += R::kTiles) {
#pragma unroll
    for (int first = 0; first < R::kTiles; first += R::kStep) {
      if (first > 0 && k + first >= e.k_end) break;
      MultiplyStep<G, F, kBlocks>(team, e, place, first, k, column, in.plane_step, scales, sum);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) column[b] += in.row_step[b];
    }
    __syncwarp();
    requests.Next();
    place.parity ^= place.stage;
    place.stage ^= 1;
  }
}

template <class G, WeightFormat F>
__device__ __forceinline__ void MultiplyRow(bool wide, const Team<G>& team, const Extent& e, Requests<G>& requests,
                                            RingPlace& place, const ChunkInputs<G>& in,
                                            const TileScales<F> (&scales)[2], float (&sum)[2][G::kMaxBlocks][4]) {
  if (wide) {
    MultiplyRow<G, F, G::kMaxBlocks>(team, e, requests, place, in, scales, sum);
  } else {
    MultiplyRow<G, F, 1>(team, e, requests, place, in, scales, sum);
  }
}

// Writes the warp's sums of row pair `row_pair` of the chunk to shared memory.
template <class G>
__device__ __forceinline__ void MultiplyItem(const GemmArgs& a, const Team<G>& team, const Extent& e,
                                             Requests<G>& requests, RingPlace& place, const ChunkInputs<G>& in,
                                             int row_pair, TeamSums<G>& sums) {
  float sum[2][G::kMaxBlocks][4] = {};  // stream, block of columns
  TileScales<G::F> scales[2];
  if constexpr (HasScalesBeside(G::F)) {
    const ExpertMatrices& m = a.matrices[in.chunk.expert];
    const int tile0 = G::Up ? row_pair : 2 * row_pair,
              tile1 = G::Up ? row_pair : min(2 * row_pair + 1, e.row_tiles - 1);
    scales[0].Row((G::Up ? m.gate : m.down).block_scale, tile0, a.k);
    scales[1].Row((G::Up ? m.up : m.down).block_scale, tile1, a.k);
  }
  const bool wide = G::Wide && in.chunk.count > G::kTokens;
  if constexpr (HasFormatBeside(G::F)) {
    const TileScales<FormatBeside(G::F)> none[2] = {};
    in.beside ? MultiplyRow<G, FormatBeside(G::F)>(wide, team, e, requests, place, in, none, sum)
              : MultiplyRow<G, G::F>(wide, team, e, requests, place, in, scales, sum);
  } else {
    MultiplyRow<G, G::F>(wide, team, e, requests, place, in, scales, sum);
  }
  if constexpr (G::kPair) {  // the first planes' columns plus the second planes'
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        sum[s][0][q] += wide ? sum[s][G::kMaxBlocks - 1][q] : __shfl_xor_sync(0xFFFFFFFFu, sum[s][0][q], 2);
      }
    }
  }
  // The sums of the previous turn are usually complete already.
#pragma unroll
  for (int b = 0; b < G::kMaxBlocks; ++b) {
    if (b == 1 && (G::kPair || !wide)) break;
    sums.AddUp(a, team, e);
    sums.Store(team, sum[0][b], sum[1][b],
               {.columns = min(in.chunk.count - 8 * b, 8),
                .begin = in.chunk.begin + 8 * b,
                .row = row_pair,
                .scale0 = in.scale0,
                .scale1 = in.scale1});
  }
}

template <WeightFormat F, int Planes, bool Up, bool Wide, int kTeams>
__global__ void __launch_bounds__(kTeamThreads* kTeams, Planes == 2 ? 2 / kTeams : 1)
    ExpertGemmKernel(const GemmArgs a) {
  using G = GemmKind<F, Planes, Up, Wide, kTeams>;
  extern __shared__ __align__(128) uint8_t shared[];
  const Team<G> team(shared);
  team.Init();
  if constexpr (Up) PrefetchMatrices<G::kThreads>(a);
  __syncthreads();
  const bool one_token = a.experts != nullptr;
  if (Up && !one_token) WaitForPrevious();

  const int row_tiles = (a.n + 15) / 16, k_tiles = (a.k + 63) / 64;
  const Extent e = {.num_chunks = one_token ? a.num_slots : a.plan[0],
                    .row_tiles = row_tiles,
                    .rows = Up ? row_tiles : (row_tiles + 1) / 2,
                    .k_tiles = k_tiles,
                    .k_begin = k_tiles * team.warp / kWarps,
                    .k_end = k_tiles * (team.warp + 1) / kWarps};
  const bool alike = kTeams == 2 || one_token || a.plan[2] == 0;
  WorkList work = alike ? CutEqually<G>(a, e, team.team) : CutByCost<G>(a, e, team.lane);

  ChunkCache cache = {};
  Requests<G> requests{.a = a,
                       .team = team,
                       .work = work,
                       .e = e,
                       .cache = cache,
                       .ahead = work.item,
                       .items = e.k_begin < e.k_end ? work.num_items : 0,
                       .known = work.known_items,
                       .k = e.k_begin};
  static_assert(G::R::kStages == 2);
  int requested = 0;
  if constexpr (G::kKnows) {
    if (work.known_items > 0 && requests.items > 0) {
      const ExpertMatrices& m = a.matrices[a.always];
      requests.PointAt(m.gate.codes, m.up.codes, IsBeside<F>(m.gate));
      for (; requested < G::R::kStages && requests.pointed; ++requested) requests.Copy();
    }
  }
  if (Up && one_token) WaitForPrevious();
  // After Up's wait, so that Down starts when the plan is complete and may request the experts' weights before its own
  // wait.
  AllowNext();

  // One token: its row is requested before the weights, because it would queue after them.
  OneRow<G> one_row;
  if (Up && a.x != nullptr) one_row.Ask(a);
  FillCache<F, Up>(a, G::kKnows && work.known_items > 0 ? 0 : work.item.chunk, e.num_chunks, team.lane, cache);
  if (!G::kKnows || !requests.pointed) requests.Point();
  for (; requested < G::R::kStages; ++requested) requests.Next();
  if constexpr (!Up) WaitForPrevious();
  if (Up && a.x != nullptr) one_row.Stage(a, team.shared_x);

  RingPlace place;
  ChunkInputs<G> in{.plane_bytes = a.plane_elements * 2, .row_bytes = PaddedColumns(a.k) * 2};
  TeamSums<G> sums;
  for (int i = 0; i < work.num_items; ++i, Advance<G>(work.item, work.known_items, work, e)) {
    if (work.item.chunk != in.known_chunk) in.Take(a, team, e, work.item.chunk, cache);
    MultiplyItem<G>(a, team, e, requests, place, in, work.item.row, sums);
  }
  sums.AddUp(a, team, e);
}

}  // namespace dsv4::experts
