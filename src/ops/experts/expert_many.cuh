// Products of seven or more tokens with their experts' FP4 tiles, if K is a few whole stages of a ring. Row pairs,
// parts of K and the order of sums are as in ExpertGemmKernel, so the bits are the same.
//
// A block's list consists of segments: row pairs of one chunk, which has up to eight tokens of an expert. A warp keeps
// its part of four tokens' inputs in registers for a whole segment, as two BF16 planes: lane 4 g + t has column g; 0 to
// 3 are the first planes, 4 to 7 the second. If a chunk has up to four tokens, each of the block's two teams has half
// of the row pairs. If it has more, both teams have all row pairs, each with four of the tokens. They advance together,
// so the second team finds the weights in L2.
//
// A row pair's sums over the warps are in one of the team's kWarps sets. Each set belongs to a warp, which adds its
// sums.
#pragma once

#include "ops/experts/expert_stage.cuh"

namespace dsv4::experts {

static_assert(kManyTokens == BlockTokens(2));
// Floats between columns of a warp's sums (no bank conflicts), per warp's sums, per set.
inline constexpr int kManyColumn = 40, kManyWarpSums = 3 * kManyColumn + 32, kManySetFloats = kWarps * kManyWarpSums;

// The ring of a warp: kTiles tiles of K, in stages of kStageTiles of kStagePairs row pairs. An item is the row pairs of
// as many stages as a row has: one or two.
template <int kTiles>
struct ManyRing {
  static constexpr int kTileBytes = static_cast<int>(TileBytes(WeightFormat::kNvfp4));
  static constexpr int kStageTiles = kTiles < 4 ? kTiles : 4, kStagePairs = 4 / kStageTiles,
                       kStagesOfItem = kTiles / kStageTiles;
  static constexpr int kStreamBytes = kStageTiles * kTileBytes, kStageBytes = 8 * kTileBytes, kBytes = 2 * kStageBytes;
};

struct ManySegment {
  const uint8_t *codes0, *codes1;
  float scale0, scale1;
  int32_t pair[kManyChunk];
  int32_t first[kManyTeams], items[kManyTeams];  // of each team
  int32_t tokens;
  bool beside;  // its tiles are of FormatBeside(F)

  __device__ __forceinline__ bool two() const { return tokens > kManyTokens; }
  __device__ __forceinline__ int base(int team) const { return two() ? team * kManyTokens : 0; }
  __device__ __forceinline__ int count(int team) const { return min(tokens - base(team), kManyTokens); }
};

struct ManyPlaces {
  static constexpr int kSums = kManyTeams * kWarps * ManyRing<8>::kBytes,
                       kSegments = kSums + kManyTeams * kWarps * kManySetFloats * 4,
                       kBytes = kSegments + kManySegments * static_cast<int>(sizeof(ManySegment));
};

// Makes the block's segments; called by every thread. items: of a chunk. Returns their number.
template <WeightFormat F, bool Up>
__device__ __forceinline__ int MakeSegments(const GemmArgs& a, int items, int max_chunks, ManySegment* segments,
                                            int* first_segment, int* num_segments) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const unsigned total = static_cast<unsigned>(a.plan[1]) * static_cast<unsigned>(items), each = total / gridDim.x,
                 more = total % gridDim.x, begin = each * blockIdx.x + min(blockIdx.x, more),
                 end = begin + each + (blockIdx.x < more ? 1 : 0);
  if (thread == 0) *first_segment = 1 << 30, *num_segments = 0;
  __syncthreads();
  Chunk mine = {};
  int from = 0, to = 0, number = -1;
  for (int i = thread; i < max_chunks; i += threads) {
    const Chunk c = a.chunks[i];
    if (c.count == 0) break;
    const unsigned start = static_cast<unsigned>(c.cost) * static_cast<unsigned>(items),
                   cost = c.count > kManyTokens ? 2 : 1;
    const auto row = [&](unsigned at) {
      return at <= start ? 0 : static_cast<int>(min((at - start + cost - 1) / cost, static_cast<unsigned>(items)));
    };
    if (row(begin) < row(end)) mine = c, from = row(begin), to = row(end), number = i;
  }
  if (number >= 0) atomicMin(first_segment, number), atomicAdd(num_segments, 1);
  __syncthreads();
  if (number >= 0) {
    ManySegment& s = segments[number - *first_segment];
    const ExpertMatrices& m = a.matrices[mine.expert];
    const QuantTensor &one = Up ? m.gate : m.down, &other = Up ? m.up : m.down;
    s.beside = IsBeside<F>(one);
    s.codes0 = one.codes, s.codes1 = other.codes;
    s.scale0 = SumScale<F>(one.global_scale, s.beside), s.scale1 = SumScale<F>(other.global_scale, s.beside);
    s.tokens = mine.count;
    s.first[0] = from, s.items[0] = to - from;
    for (int i = 0; i < mine.count; ++i) s.pair[i] = a.pairs[mine.begin + i];
  }
  __syncthreads();
  const int count = *num_segments;
  if (thread == 0) {  // the teams' parts
    int odd = 0;
    for (int i = 0; i < count; ++i) {
      ManySegment& s = segments[i];
      const int all = s.items[0];
      if (s.two()) {
        s.first[1] = s.first[0], s.items[1] = all;
      } else {
        s.items[0] = (all + 1 - odd) / 2, s.items[1] = all - s.items[0], s.first[1] = s.first[0] + s.items[0];
        odd ^= all % 2;
      }
    }
  }
  __syncthreads();
  return count;
}

// A team's position in its list: a segment, and an item of the segment.
struct ManyCursor {
  int segment, item, left;  // remaining items of the segment, including this one

  // Moves to the first item at or after segment `segment`. Sets segment to `count` if there is none.
  __device__ __forceinline__ void Find(const ManySegment* segments, int count, int team) {
    left = 0;
    for (; segment < count; ++segment) {
      left = segments[segment].items[team];
      item = segments[segment].first[team];
      if (left > 0) break;
    }
  }
};

// A warp's requests for its part of the items' weights, by stage, which run ahead of the products.
template <WeightFormat F, bool Up, int kTiles>
class ManyRequests {
 public:
  using R = ManyRing<kTiles>;

  __device__ __forceinline__ ManyRequests(uint32_t ring, uint32_t ring_full) : ring_(ring), full_(ring_full) {}

  __device__ __forceinline__ void Begin(const ManySegment* segments, int count, int team, int warp) {
    at_.segment = 0;
    at_.Find(segments, count, team);
    if (at_.left > 0) PointAt(segments[at_.segment], warp);
  }
  // Requests the next stage, if any, into place `stage` of the ring. An item of two stages has a first and a second
  // stage.
  template <int kOfItem>
  __device__ __forceinline__ void Ask(int stage, uint64_t policy, const ManySegment* segments, int count, int team,
                                      int warp) {
    if (at_.left <= 0) return;
    if (ElectLane()) {
      const uint32_t full = full_ + 8 * stage, to = ring_ + stage * R::kStageBytes;
      const uint32_t bytes = static_cast<uint32_t>(R::kStageTiles * bytes_);
      BarrierExpect(full, 2 * R::kStagePairs * bytes);
#pragma unroll
      for (int p = 0; p < R::kStagePairs; ++p) {
        const int64_t offset = kOfItem * R::kStageTiles * bytes_ + p * RowBytes();
        BulkLoad(to + 2 * p * R::kStreamBytes, from0_ + offset, bytes, full, policy);
        BulkLoad(to + (2 * p + 1) * R::kStreamBytes, from1_ + offset, bytes, full, policy);
      }
    }
    if (kOfItem < R::kStagesOfItem - 1) return;
    if (--at_.left > 0) {
      from0_ += R::kStagePairs * RowBytes(), from1_ += R::kStagePairs * RowBytes();
    } else {
      ++at_.segment;
      at_.Find(segments, count, team);
      if (at_.left > 0) PointAt(segments[at_.segment], warp);
    }
  }

 private:
  // The bytes of a row pair in one of the streams.
  __device__ __forceinline__ int RowBytes() const { return (Up ? 1 : 2) * kWarps * kTiles * bytes_; }
  __device__ __forceinline__ void PointAt(const ManySegment& s, int warp) {
    if (HasFormatBeside(F)) bytes_ = BytesOfTile<F>(s.beside);
    const int64_t offset = int64_t{at_.item} * (R::kStagePairs * RowBytes()) + warp * kTiles * bytes_;
    from0_ = s.codes0 + offset;
    from1_ = s.codes1 + offset + (Up ? 0 : kWarps * kTiles * bytes_);
  }

  uint32_t ring_, full_;
  ManyCursor at_;
  int bytes_ = BytesOfTile<F>(false);
  const uint8_t *from0_ = nullptr, *from1_ = nullptr;
};

// Multiplies the tiles of a row pair in a stage, of format T, with the columns of these tiles.
template <WeightFormat T, int kTiles, int kFirst, int kAll>
__device__ __forceinline__ void MultiplyStage(uint32_t codes, uint32_t scales, const Columns (&x)[kAll],
                                              float (&sum)[2][1][4]) {
  constexpr int kTileBytes = static_cast<int>(TileBytes(T));
  constexpr int kStreamBytes = kTiles * static_cast<int>(TileBytes(WeightFormat::kNvfp4));
  const TileScales<T> none[2] = {};
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    LaneTile<T> raw[2];
    raw[0] = LoadSharedTile<T>(codes + j * kTileBytes, scales + j * kTileBytes);
    raw[1] = LoadSharedTile<T>(codes + j * kTileBytes + kStreamBytes, scales + j * kTileBytes + kStreamBytes);
    const Columns columns[1][1] = {{x[kFirst + j]}};
    MultiplyTiles<T, 1, 1, true>(raw, columns, sum, none, 0);
  }
}

// The sums of a team's row pairs: written by all warps, added by one.
template <bool Up>
struct ManySums {
  float* sets;          // of the team
  uint32_t full, free;  // its barriers, by set
  int turn = 0, due = -1, due_segment = 0, due_row = 0;

  // Stores the columns' sums of both planes: lane 4 g + t has rows g and g + 8 of columns 2 (t % 2) and the next one,
  // of the first stream if t < 2, else of the second.
  __device__ __forceinline__ void Store(const float (&sum)[2][1][4], int warp, int lane, int segment, int row) {
    const int g = lane / 4, t = lane % 4, set = turn % kWarps;
    float both[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const float mine = t < 2 ? sum[0][0][q] : sum[1][0][q], other = t < 2 ? sum[1][0][q] : sum[0][0][q];
      both[q] = mine + __shfl_xor_sync(0xFFFFFFFFu, other, 2);
    }
    BarrierWait(free + 8 * set, turn / kWarps % 2 ^ 1);
    float* to = sets + set * kManySetFloats + warp * kManyWarpSums + 2 * (t % 2) * kManyColumn + 8 * (t / 2) + g;
#pragma unroll
    for (int q = 0; q < 4; ++q) to[q % 2 * kManyColumn + q / 2 * 16] = both[q];
    BarrierArrive(full + 8 * set);
    if (set == warp) due = turn, due_segment = segment, due_row = row;
    ++turn;
  }

  __device__ __forceinline__ void AddUp(const GemmArgs& a, const ManySegment* segments, int team, int warp, int lane) {
    BarrierWait(full + 8 * warp, due / kWarps % 2);
    due = -1;
    const ManySegment& s = segments[due_segment];
    const int out_row = lane % 16, base = s.base(team), count = s.count(team);
    const float* from = sets + warp * kManySetFloats + out_row % 8 + out_row / 8 * 16;
#pragma unroll 1
    for (int column = lane / 16; column < count; column += 2) {
      const int pair = s.pair[base + column];
      float first = 0, second = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        first += from[w * kManyWarpSums + column * kManyColumn];
        second += from[w * kManyWarpSums + column * kManyColumn + 8];
      }
      first *= s.scale0;
      second *= s.scale1;
      if constexpr (Up) {
        uint16_t part[2];
        SplitBf16<2>(SwigluValue(first, second, a.limit) * a.weights[pair], part);
        uint16_t* to = a.hidden_planes + int64_t{pair} * a.n + 16 * due_row + out_row;
        to[0] = part[0], to[a.hidden_plane_elements] = part[1];
      } else {
        float* to = a.outputs + int64_t{pair} * a.n + 32 * due_row + out_row;
        to[0] = first, to[16] = second;
      }
    }
    BarrierArrive(free + 8 * warp);
  }
};

// Loads a warp's part of its chunk's inputs: column g of the lane, or zeros if the chunk has no such column.
template <bool Up, int kTiles>
__device__ __forceinline__ void LoadChunk(const GemmArgs& a, const ManySegment& s, int team, int warp, int lane,
                                          Columns (&x)[kTiles]) {
  const int g = lane / 4, t = lane % 4, column = g % 4;
  if (column < s.count(team)) {
    const int pair = s.pair[s.base(team) + column], row = Up ? pair / a.num_slots : pair;
    const uint8_t* from = reinterpret_cast<const uint8_t*>(a.planes + g / 4 * a.plane_elements + int64_t{row} * a.k) +
                          warp * kTiles * 128 + 32 * t;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) x[j] = LoadColumns(from + j * 128);
  } else {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) x[j] = {};
  }
}

// A warp's products.
template <WeightFormat F, bool Up, int kTiles>
struct ManyWarp {
  using R = ManyRing<kTiles>;
  // Turns until sums are added; they are then complete.
  static constexpr int kLag = R::kStagesOfItem == 2 ? 1 : 3;
  const GemmArgs& a;
  const ManySegment* segments;
  int count, team, warp, lane;  // count: of segments
  uint32_t ring, ring_full;
  ManyRequests<F, Up, kTiles> requests;
  ManySums<Up> sums;
  int stage = 0, parity = 0;  // the ring's next stage; with items of two stages only `parity` is used

  __device__ __forceinline__ void Run() {
    ManyCursor at = {.segment = 0};
    for (at.Find(segments, count, team); at.segment < count; ++at.segment, at.Find(segments, count, team)) {
      const ManySegment& s = segments[at.segment];
      Columns x[kTiles];
      LoadChunk<Up>(a, s, team, warp, lane, x);
      if (HasFormatBeside(F) && s.beside) {
        MultiplyItems<FormatBeside(F)>(x, at);
      } else {
        MultiplyItems<F>(x, at);
      }
    }
    if (sums.due >= 0) sums.AddUp(a, segments, team, warp, lane);
  }

 private:
  // Multiplies the segment's items, whose tiles have format T.
  template <WeightFormat T>
  __device__ __forceinline__ void MultiplyItems(const Columns (&x)[kTiles], ManyCursor& at) {
#pragma unroll 1
    for (; at.left > 0; --at.left, ++at.item) {
      const uint32_t codes = ring + stage * R::kStageBytes + 16 * lane,
                     scales = codes + (ScalesOfLane(T, lane) - 16 * lane);
      if constexpr (R::kStagesOfItem == 2) {
        float sum[2][1][4] = {};
        BarrierWait(ring_full, parity);
        MultiplyStage<T, 4, 0>(codes, scales, x, sum);
        Ask<0>(0);
        BarrierWait(ring_full + 8, parity);
        MultiplyStage<T, 4, 4>(codes + R::kStageBytes, scales + R::kStageBytes, x, sum);
        Ask<1>(1);
        parity ^= 1;
        Finish(sum, at, 0);
      } else {
        BarrierWait(ring_full + 8 * stage, parity);
#pragma unroll
        for (int p = 0; p < R::kStagePairs; ++p) {
          float sum[2][1][4] = {};
          MultiplyStage<T, kTiles, 0>(codes + 2 * p * R::kStreamBytes, scales + 2 * p * R::kStreamBytes, x, sum);
          if (p == R::kStagePairs - 1) Ask<0>(stage);
          Finish(sum, at, p);
        }
        parity ^= stage;
        stage ^= 1;
      }
    }
  }
  // Requests new contents for a stage that all lanes have read.
  template <int kOfItem>
  __device__ __forceinline__ void Ask(int to) {
    __syncwarp();
    requests.template Ask<kOfItem>(to, a.policy, segments, count, team, warp);
  }
  __device__ __forceinline__ void Finish(const float (&sum)[2][1][4], const ManyCursor& at, int pair) {
    if (sums.due >= 0 && sums.turn == sums.due + kLag) sums.AddUp(a, segments, team, warp, lane);
    sums.Store(sum, warp, lane, at.segment, at.item * R::kStagePairs + pair);
  }
};

template <WeightFormat F, bool Up, int kTiles>
__global__ void __launch_bounds__(kManyTeams* kTeamThreads, 1) ExpertManyKernel(const GemmArgs a, int max_chunks) {
  using R = ManyRing<kTiles>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t ring_barriers[kManyTeams * kWarps][2], sum_barriers[kManyTeams][2][kWarps];
  __shared__ int first_segment, num_segments;
  const int warp_of_block = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
  const int team = warp_of_block / kWarps, warp = warp_of_block % kWarps, lane = threadIdx.x % 32;
  const uint32_t base = __shfl_sync(0xFFFFFFFFu, SharedAddress(shared), 0), ring = base + warp_of_block * R::kBytes;
  const uint32_t ring_full = __shfl_sync(0xFFFFFFFFu, SharedAddress(ring_barriers[0]), 0) + 16 * warp_of_block,
                 sums_full = __shfl_sync(0xFFFFFFFFu, SharedAddress(sum_barriers[0][0]), 0) + 16 * kWarps * team,
                 sums_free = sums_full + 8 * kWarps;
  if (lane == 0) {
    BarrierInit(ring_full, 1), BarrierInit(ring_full + 8, 1);
    BarrierInit(sums_full + 8 * warp, kTeamThreads), BarrierInit(sums_free + 8 * warp, 32);
    BarrierInitFence();
    FenceAsyncShared();
  }
  if (Up) {
    PrefetchMatrices<kManyTeams * kTeamThreads>(a);
    WaitForPrevious();
  }
  AllowNext();  // up: after the wait, so that down starts when the plan is complete

  ManySegment* const segments = reinterpret_cast<ManySegment*>(shared + ManyPlaces::kSegments);
  const int items = a.n / ((Up ? 16 : 32) * R::kStagePairs);
  const int count = MakeSegments<F, Up>(a, items, max_chunks, segments, &first_segment, &num_segments);
  ManyRequests<F, Up, kTiles> requests(ring, ring_full);
  requests.Begin(segments, count, team, warp);
  requests.template Ask<0>(0, a.policy, segments, count, team, warp);
  requests.template Ask<R::kStagesOfItem - 1>(1, a.policy, segments, count, team, warp);
  if (!Up) WaitForPrevious();
  float* const sets = reinterpret_cast<float*>(shared + ManyPlaces::kSums) + team * kWarps * kManySetFloats;
  ManyWarp<F, Up, kTiles>{.a = a,
                          .segments = segments,
                          .count = count,
                          .team = team,
                          .warp = warp,
                          .lane = lane,
                          .ring = ring,
                          .ring_full = ring_full,
                          .requests = requests,
                          .sums = {.sets = sets, .full = sums_full, .free = sums_free}}
      .Run();
}

}  // namespace dsv4::experts
