// Products of two to kFewTokens tokens with their experts' FP4 tiles, without a kernel in front that sorts: each block
// makes the list of chunks by itself, in shared memory. Row pairs, parts of K and the order of sums are those of
// ExpertGemmKernel (and so are the bits); the loop over tiles is ExpertOneKernel's.
//
// Inputs lie in shared memory as two BF16 planes each: of up all tokens, for both teams, of down a warp's part of the
// chunk's hidden rows. Lane 4 g + t of the product loads column g: 0 to 3 are the chunk's first planes, 4 to 7 the
// second ones, zeros where it has fewer tokens. A column's sums over the warps lie in one of the team's kWarps slots,
// which warp adds up whose slot it is: up to eight columns are on their way.
#pragma once

#include "ops/experts/expert_stage.cuh"
#include "ops/idle_row.h"

namespace dsv4::experts {

// Eight tokens take as long by ExpertGemmKernel (bench/notes/decode.md).
inline constexpr int kFewTokens = 6, kFewPairs = 64, kFewMembers = BlockTokens(2);
inline constexpr int kFewSumFloats = kWarps * 32;  // of a slot: 32 rows of each warp

// An expert and up to kFewMembers of its pairs.
struct FewChunk {
  const uint8_t *codes0, *codes1;
  float scale0, scale1;
  uint8_t pair[kFewMembers];
  uint8_t count;
  bool beside;  // its tiles are of FormatBeside(F)
};
static_assert(sizeof(FewChunk) == 32);

// What the host knows of the list of row pairs. known: the first chunk's expert is known beforehand, and each block has
// its share of that one's rows. reciprocal: of `rows`, 2^32 / rows rounded up.
struct FewList {
  int tokens, pairs, rows;
  bool up, known;
  uint32_t reciprocal;
};

// Who has which expert.
struct FewPlan {
  int32_t expert[kFewPairs];
  uint32_t leads[2], idle[2];  // which pairs are their chunk's first, which have no expert
};

// A block's dynamic memory, which ends with chunks and inputs. kTiles: tiles of each stream in a stage of a ring.
template <int kTiles>
struct FewPlaces {
  static constexpr int kStreamBytes = kTiles * static_cast<int>(TileBytes(WeightFormat::kNvfp4)),
                       kStageBytes = 2 * kStreamBytes, kRingBytes = 2 * kStageBytes;  // of a warp
  static constexpr int kSums = 2 * kWarps * kRingBytes, kZeros = kSums + 2 * kWarps * kFewSumFloats * 4,
                       kZeroBytes = kTiles * 128 + 32, kChunks = kZeros + kZeroBytes;
};
inline constexpr int kFewOwnShared = 1024;  // what the kernel declares itself, at most

template <int kTiles>
int64_t FewSharedBytes(bool up, int64_t k, int64_t tokens, int64_t slots) {
  const int64_t inputs = up ? tokens * 4 * k : 2 * kWarps * kFewMembers * (4 * k / kWarps);
  return FewPlaces<kTiles>::kChunks + tokens * slots * static_cast<int64_t>(sizeof(FewChunk)) + inputs;
}

// Of a product [n, k]; both must fit.
template <int kTiles>
bool FewTokensFit(bool up, int64_t k, int64_t n, int64_t tokens, int64_t slots) {
  return k % (kWarps * 64 * kTiles) == 0 && n % 64 == 0 &&
         FewSharedBytes<kTiles>(up, k, tokens, slots) <= static_cast<int64_t>(kSharedMemoryOfABlock) - kFewOwnShared;
}

// The expert of pair threadIdx.x.
__device__ __forceinline__ int32_t ExpertOfPair(const GemmArgs& a, const FewList& list) {
  const int pair = static_cast<int>(threadIdx.x);
  const int32_t e = pair < list.pairs ? a.experts[pair] : kNoExpert;
  return e == kNoExpert ? kNoExpert : min(max(e, 0), a.num_experts - 1);
}

// The chunks, by the block's first kFewPairs threads: pairs with an expert, grouped by it, in the order of its first
// pair. Their number; every thread calls it, with ExpertOfPair.
template <WeightFormat F>
__device__ __forceinline__ int PlanFew(const GemmArgs& a, const FewList& list, int32_t expert, FewPlan& plan,
                                       FewChunk* chunks) {
  const int pair = static_cast<int>(threadIdx.x), warp = pair / 32;
  if (pair < kFewPairs) plan.expert[pair] = expert;
  __syncthreads();
  const int32_t mine = pair < kFewPairs ? expert : kNoExpert;
  int before = 0, same = 0, lead = 0;  // pairs of the same expert: in front, all; the chunk's first
  if (pair < kFewPairs) {
#pragma unroll 4
    for (int i = 0; i < list.pairs; ++i) {
      if (plan.expert[i] != mine) continue;
      if (i <= pair && same % kFewMembers == 0) lead = i;
      before += i < pair ? 1 : 0;
      ++same;
    }
    const uint32_t leads = __ballot_sync(0xFFFFFFFFu, mine != kNoExpert && lead == pair),
                   idle = __ballot_sync(0xFFFFFFFFu, mine == kNoExpert && pair < list.pairs);
    if (pair % 32 == 0) plan.leads[warp] = leads, plan.idle[warp] = idle;
  }
  __syncthreads();
  const uint32_t first = plan.leads[0], second = plan.leads[1];
  if (mine != kNoExpert) {
    FewChunk& c = chunks[lead < 32 ? __popc(first & ((1u << lead) - 1))
                                   : __popc(first) + __popc(second & ((1u << (lead - 32)) - 1))];
    c.pair[before % kFewMembers] = static_cast<uint8_t>(pair);
    if (lead == pair) {
      const ExpertMatrices& m = a.matrices[mine];
      const QuantTensor &one = list.up ? m.gate : m.down, &other = list.up ? m.up : m.down;
      c.count = static_cast<uint8_t>(min(same - before, kFewMembers));
      c.beside = IsBeside<F>(one);
      c.codes0 = one.codes, c.codes1 = other.codes;
      c.scale0 = SumScale<F>(one.global_scale, c.beside), c.scale1 = SumScale<F>(other.global_scale, c.beside);
    }
  }
  __syncthreads();
  return __popc(first) + __popc(second);
}

// o[t, a] = 0 of the pairs without an expert.
__device__ __forceinline__ void ClearFew(const GemmArgs& a, const FewList& list, const FewPlan& plan) {
  if ((plan.idle[0] | plan.idle[1]) == 0) return;
  for (int pair = 0; pair < list.pairs; ++pair) {
    if (plan.expert[pair] != kNoExpert) continue;
    for (int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); c < a.n;
         c += static_cast<int>(gridDim.x * blockDim.x))
      a.outputs[int64_t{pair} * a.n + c] = 0;
  }
}

// Which items of the list are the block's: of the known chunk [first, first + known), then from `rest` on.
struct FewItems {
  int first = 0, known = 0, rest = 0, count = 0;
  int rows;
  uint32_t reciprocal;

  __device__ __forceinline__ explicit FewItems(const FewList& list) : rows(list.rows), reciprocal(list.reciprocal) {
    if (!list.known) return;
    const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
    first = rows * block / blocks;
    known = rows * (block + 1) / blocks - first;
  }
  // With one chunk at least where one is known.
  __device__ __forceinline__ void Cut(const FewList& list, int num_chunks) {
    const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
    const int total = num_chunks * rows, each = total / blocks, more = total % blocks;
    const int begin = each * block + min(block, more);
    if (!list.known) {
      rest = begin, count = each + (block < more ? 1 : 0);
    } else if (num_chunks == 1) {
      count = known;
    } else {
      rest = rows + begin - first, count = each + (block < more ? 1 : 0);
    }
  }
  struct Place {
    int chunk, row;
  };
  __device__ __forceinline__ Place operator[](int i) const {
    if (i < known) return {0, first + i};
    const int at = rest + i - known, chunk = static_cast<int>(__umulhi(static_cast<uint32_t>(at), reciprocal));
    return {chunk, at - chunk * rows};
  }
};

// Inputs of odd rows (tokens of up, places in a chunk of down) have the halves of every 32 bytes exchanged: then the
// columns beside each other lie in other banks.
__device__ __forceinline__ int FewSwap(int row) { return row % 2 * 16; }

// All tokens' x as planes, for both teams: row by row, of each warp its part, first plane and second.
__device__ __forceinline__ void StageFew(const GemmArgs& a, int tokens, int tiles, int team, int warp, int lane,
                                         uint8_t* inputs) {
  const int plane = tiles * 128, row_bytes = 2 * kWarps * plane, swap = FewSwap(team);  // row and row + 2 are alike
#pragma unroll 1
  for (int row = team; row < tokens; row += 4) {  // and row + 2
#pragma unroll 1
    for (int first = 0; first < tiles / 2; first += 4) {
      float4 part[2][4];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float4* from = reinterpret_cast<const float4*>(a.x + int64_t{row + 2 * j} * a.k) + warp * tiles * 16 +
                             lane;
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          if (row + 2 * j < tokens && first + u < tiles / 2) part[j][u] = from[(first + u) * 32];
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        uint8_t* to = inputs + (row + 2 * j) * row_bytes + warp * 2 * plane + (lane * 8 ^ swap);
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          if (row + 2 * j >= tokens || first + u >= tiles / 2) continue;
          const Bf16Pairs low = SplitPairs(part[j][u].x, part[j][u].y), high = SplitPairs(part[j][u].z, part[j][u].w);
          *reinterpret_cast<uint2*>(to + (first + u) * 256) = make_uint2(low.hi, high.hi);
          *reinterpret_cast<uint2*>(to + (first + u) * 256 + plane) = make_uint2(low.lo, high.lo);
        }
      }
    }
  }
}

// The warp's part of a chunk's hidden rows.
__device__ __forceinline__ void LoadHidden(const GemmArgs& a, const FewChunk& c, int plane, int warp, int lane,
                                           uint8_t* inputs) {
  const uint8_t* from = reinterpret_cast<const uint8_t*>(a.planes) + warp * plane;
  __syncwarp();
#pragma unroll 1
  for (int byte = 16 * lane; byte < plane; byte += 512) {
    uint4 v[kFewMembers][2];
#pragma unroll
    for (int i = 0; i < kFewMembers; ++i) {
      if (i >= c.count) break;
      const uint8_t* row = from + int64_t{c.pair[i]} * a.k * 2 + byte;
      v[i][0] = *reinterpret_cast<const uint4*>(row);
      v[i][1] = *reinterpret_cast<const uint4*>(row + a.plane_elements * 2);
    }
#pragma unroll
    for (int i = 0; i < kFewMembers; ++i) {
      if (i >= c.count) break;
      uint8_t* row = inputs + i * 2 * plane + (byte ^ FewSwap(i));
      *reinterpret_cast<uint4*>(row) = v[i][0], *reinterpret_cast<uint4*>(row + plane) = v[i][1];
    }
  }
  __syncwarp();
}

// A warp's requests for its part of the items' weights, which run ahead of the products.
template <WeightFormat F, int kTiles>
class FewRequests {
 public:
  using P = FewPlaces<kTiles>;

  __device__ __forceinline__ FewRequests(bool up, int tiles, int warp, uint32_t ring, uint32_t ring_full)
      : up_(up), tiles_(tiles), warp_(warp), ring_(ring), full_(ring_full), bytes_(BytesOfTile<F>(false)) {}

  // Stages of a known expert's row, before there are chunks.
  __device__ __forceinline__ void AskKnown(const GemmArgs& a, const ExpertMatrices& m, int row) {
    PointAt(m.gate.codes, m.up.codes, IsBeside<F>(m.gate), row);
    for (; asked_ < min(2, tiles_ / kTiles); ++asked_) Copy(a);
  }
  // Items begin .. end - 1, as far as the ring has room.
  __device__ __forceinline__ void Begin(const GemmArgs& a, const FewItems& items, const FewChunk* chunks, int begin,
                                        int end) {
    end_ = end;
    if (asked_ == 0) item_ = begin;
    for (; asked_ < 2; ++asked_) Ask(a, items, chunks);
  }
  // The next stage, if any.
  __device__ __forceinline__ void Ask(const GemmArgs& a, const FewItems& items, const FewChunk* chunks) {
    if (item_ >= end_) return;
    if (tile_ == 0) {
      const FewItems::Place at = items[item_];
      const FewChunk& c = chunks[at.chunk];
      PointAt(c.codes0, c.codes1, c.beside, at.row);
    }
    Copy(a);
  }

 private:
  __device__ __forceinline__ void PointAt(const uint8_t* codes0, const uint8_t* codes1, bool beside, int row) {
    bytes_ = BytesOfTile<F>(beside);
    const int slice = tiles_ * bytes_;  // of a row of tiles
    const uint32_t offset = static_cast<uint32_t>(up_ ? row : 2 * row) * static_cast<uint32_t>(kWarps * slice) +
                            static_cast<uint32_t>(warp_ * slice);
    from0_ = codes0 + offset;
    from1_ = codes1 + offset + (up_ ? 0 : kWarps * slice);
  }
  __device__ __forceinline__ void Copy(const GemmArgs& a) {
    if (ElectLane()) {
      const uint32_t bytes = static_cast<uint32_t>(kTiles * bytes_), to = ring_ + stage_ * P::kStageBytes,
                     full = full_ + 8 * stage_;
      BarrierExpect(full, 2 * bytes);
      BulkLoad(to, from0_, bytes, full, a.policy);
      BulkLoad(to + P::kStreamBytes, from1_, bytes, full, a.policy);
    }
    from0_ += kTiles * bytes_, from1_ += kTiles * bytes_;
    stage_ ^= 1;
    tile_ += kTiles;
    if (tile_ == tiles_) tile_ = 0, ++item_;
  }

  bool up_;
  int tiles_, warp_;
  uint32_t ring_, full_;
  int item_ = 0, end_ = 0, tile_ = 0, stage_ = 0, bytes_, asked_ = 0;
  const uint8_t *from0_ = nullptr, *from1_ = nullptr;
};

// Where a lane's column of a chunk lies: its halves, and how far the next stage's are.
struct FewColumn {
  uint32_t at = 0;
  int step = 0;

  FewColumn() = default;
  // Lane 4 g + t of the product has column g, of which g % 4 is the pair and g / 4 the plane. `planes`: the warp's part
  // of row r, up: of token r, else of the chunk's pair r.
  template <typename Planes>
  __device__ __forceinline__ FewColumn(const FewChunk& chunk, int count, bool up, int num_slots, int g, int t,
                                       int plane, int stage_bytes, uint32_t zeros, const Planes& planes) {
    const int column = g % 4;
    const auto row_of = [&](int c) { return up ? chunk.pair[c] / num_slots : c; };
    if (column < count) {
      const int row = row_of(column);
      at = SharedAddress(planes(row) + g / 4 * plane) + 32 * t + FewSwap(row);
      step = stage_bytes;
    } else {  // zeros, in other banks than those of the column beside it
      const bool beside_one = column % 2 == 1 && column - 1 < count;
      at = zeros + 32 * t + (beside_one ? 16 - FewSwap(row_of(column - 1)) : 0);
    }
  }
};

// One kernel for both launches, as ExpertOneKernel is. K is cut in whole stages.
template <WeightFormat F, int kTiles>
__global__ void __launch_bounds__(2 * kTeamThreads, 1) ExpertFewKernel(const GemmArgs a, const FewList list) {
  using P = FewPlaces<kTiles>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t ring_barriers[2 * kWarps][2], sum_barriers[2][2][kWarps];  // full, free
  __shared__ FewPlan plan;
  static_assert(sizeof ring_barriers + sizeof sum_barriers + sizeof plan <= kFewOwnShared);
  const bool up = list.up;
  if (!up) AllowNext();
  const int tiles = a.k / (64 * kWarps), plane = tiles * 128;  // of a warp; bytes of one of its planes
  const int warp_of_block = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
  const int team = warp_of_block / kWarps, warp = warp_of_block % kWarps, lane = threadIdx.x % 32, g = lane / 4,
            t = lane % 4;
  const uint32_t base = __shfl_sync(0xFFFFFFFFu, SharedAddress(shared), 0), ring = base + warp_of_block * P::kRingBytes;
  const uint32_t ring_full = __shfl_sync(0xFFFFFFFFu, SharedAddress(ring_barriers[0]), 0) + 16 * warp_of_block,
                 sums_full = __shfl_sync(0xFFFFFFFFu, SharedAddress(sum_barriers[0][0]), 0) + 16 * kWarps * team,
                 sums_free = sums_full + 8 * kWarps;
  float* const sums = reinterpret_cast<float*>(shared + P::kSums) + team * kWarps * kFewSumFloats;
  FewChunk* const chunks = reinterpret_cast<FewChunk*>(shared + P::kChunks);
  uint8_t* const inputs = shared + P::kChunks + list.pairs * static_cast<int>(sizeof(FewChunk));
  if (lane == 0) {
    BarrierInit(ring_full, 1), BarrierInit(ring_full + 8, 1);
    // every lane that stores; who adds up
    BarrierInit(sums_full + 8 * warp, kWarps * 8), BarrierInit(sums_free + 8 * warp, 1);
    BarrierInitFence();
    FenceAsyncShared();
  }
  if (threadIdx.x < P::kZeroBytes / 4) reinterpret_cast<uint32_t*>(shared + P::kZeros)[threadIdx.x] = 0;
  __syncthreads();

  FewItems items(list);
  FewRequests<F, kTiles> requests(up, tiles, warp, ring, ring_full);
  const auto request = [&] { requests.Ask(a, items, chunks); };
  // ---- the list; of up the first team asks for the known item before it ----
  int32_t expert;
  if (up) {
    PrefetchMatrices<2 * kTeamThreads>(a);
    if (items.known > 0 && team == 0) {
      requests.AskKnown(a, a.matrices[a.always], items.first);
    }
    WaitForPrevious();
    AllowNext();  // after the wait: down asks for weights before its own
    expert = ExpertOfPair(a, list);
    StageFew(a, list.tokens, tiles, team, warp, lane, inputs);
  } else {
    expert = ExpertOfPair(a, list);
  }
  int num_chunks = PlanFew<F>(a, list, expert, plan, chunks);
  if (list.known && num_chunks == 0) {  // all rows are idle: what was asked for is multiplied with nothing
    num_chunks = 1;
    if (threadIdx.x == 0) {
      const ExpertMatrices& m = a.matrices[a.always];
      chunks[0] = {.codes0 = m.gate.codes, .codes1 = m.up.codes, .beside = IsBeside<F>(m.gate)};
    }
    __syncthreads();
  }
  items.Cut(list, num_chunks);
  const int begin = team == 0 ? 0 : (items.count + 1) / 2;
  const int end = team == 0 ? (items.count + 1) / 2 : items.count;
  requests.Begin(a, items, chunks, begin, end);
  if (!up) {
    WaitForPrevious();
    ClearFew(a, list, plan);
  }

  // ---- sums of a column ----
  struct {
    int parity, pair = -1, row;
    float scale0, scale1;
  } due;
  const auto add_up = [&] {
    if (due.pair < 0) return;
    BarrierWait(sums_full + 8 * warp, due.parity);
    float sum = AddWarps(sums + warp * kFewSumFloats + lane);
    sum *= lane < 16 ? due.scale0 : due.scale1;
    __syncwarp();
    if (lane == 0) BarrierArrive(sums_free + 8 * warp);
    StoreRowPair(a, up, due.pair, due.row, lane, sum);
    due.pair = -1;
  };

  // ---- products ----
  int stage = 0, parity = 0, chunk_now = -1, job = 0;
  FewColumn column;
#pragma unroll 1
  for (int i = begin; i < end; ++i) {
    const FewItems::Place item = items[i];
    const FewChunk& chunk = chunks[item.chunk];
    const int count = chunk.count;
    if (item.chunk != chunk_now) {
      chunk_now = item.chunk;
      uint8_t* const own = inputs + warp_of_block * kFewMembers * 2 * plane;
      if (!up) LoadHidden(a, chunk, plane, warp, lane, own);
      column = FewColumn(chunk, count, up, a.num_slots, g, t, plane, kTiles * 128, base + P::kZeros, [&](int row) {
        return up ? inputs + (row * kWarps + warp) * 2 * plane : own + row * 2 * plane;
      });
    }
    float sum[2][1][4] = {};
    const auto multiply = [&]<WeightFormat T>() {
      uint32_t low_at = column.at, high_at = column.at ^ 16;
#pragma unroll 1
      for (int tile = 0; tile < tiles; tile += kTiles, low_at += column.step, high_at += column.step) {
        const uint32_t codes = ring + stage * P::kStageBytes + 16 * lane,
                       scales = codes + (ScalesOfLane(T, lane) - 16 * lane);
#pragma unroll
        for (int first = 0; first < kTiles; first += 2) {
          constexpr int kTileBytes = static_cast<int>(TileBytes(T));
          MultiplyTwoTiles<T, P::kStreamBytes>(low_at + first * 128, high_at + first * 128, codes + first * kTileBytes,
                                               scales + first * kTileBytes, sum, [&] {
                                                 if (first == 0) BarrierWait(ring_full + 8 * stage, parity);
                                               });
        }
        __syncwarp();
        request();
        parity ^= stage;
        stage ^= 1;
      }
    };
    if (HasFormatBeside(F) && chunk.beside) {
      multiply.template operator()<FormatBeside(F)>();
    } else {
      multiply.template operator()<F>();
    }
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int q = 0; q < 4; ++q) sum[s][0][q] += __shfl_xor_sync(0xFFFFFFFFu, sum[s][0][q], 2);  // the planes
    }
    add_up();
#pragma unroll
    for (int c = 0; c < kFewMembers; ++c) {
      if (c >= count) break;
      const int slot = job % kWarps, use = job / kWarps % 2;
      BarrierWait(sums_free + 8 * slot, use ^ 1);
      if (t == c / 2) {
        float* mine = sums + slot * kFewSumFloats + warp * 32 + g;
        mine[0] = sum[0][0][c % 2], mine[8] = sum[0][0][2 + c % 2];
        mine[16] = sum[1][0][c % 2], mine[24] = sum[1][0][2 + c % 2];
        BarrierArrive(sums_full + 8 * slot);
      }
      if (slot == warp)
        due = {.parity = use, .pair = chunk.pair[c], .row = item.row, .scale0 = chunk.scale0, .scale1 = chunk.scale1};
      ++job;
    }
  }
  add_up();
}

}  // namespace dsv4::experts
