// Products of two to kFewTokens tokens with their experts' FP4 tiles, without a kernel before them that sorts. Each
// block makes the list of chunks itself, in shared memory. Row pairs, parts of K and the order of sums are as in
// ExpertGemmKernel, so the bits are the same; the loop over tiles is ExpertOneKernel's.
//
// Inputs are in shared memory as two BF16 planes each: for up all tokens, for both teams; for down a warp's part of the
// chunk's hidden rows. Lane 4 g + t of the product loads column g: 0 to 3 are the chunk's first planes, 4 to 7 the
// second planes; missing tokens are zeros. A column's sums over the warps are in one of the team's kWarps slots. Each
// slot belongs to a warp, which adds its sums. So up to eight columns are in flight.
#pragma once

#include "ops/experts/expert_few_plan.cuh"
#include "ops/experts/expert_stage.cuh"

namespace dsv4::experts {

// Inputs of odd rows (up: tokens; down: places in a chunk) have the halves of every 32 bytes exchanged, so that
// neighbouring columns are in different banks.
__device__ __forceinline__ int FewSwap(int row) { return row % 2 * 16; }

// All tokens' x as planes, for both teams: per row and warp its part, first plane and second. A warp loads its part of
// every other row, eight tiles of two rows at a time. Call Ask before the first Store.
class FewInputs {
 public:
  __device__ __forceinline__ FewInputs(int tokens, int tiles, int team, int warp, int lane)
      : tokens_(tokens), tiles_(tiles), row_(team), warp_(warp), lane_(lane) {}

  __device__ __forceinline__ void Ask(const GemmArgs& a) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float4* from = reinterpret_cast<const float4*>(a.x + int64_t{row_ + 2 * j} * a.k) + warp_ * tiles_ * 16 +
                           lane_;
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        if (Has(j, u)) part_[j][u] = from[(first_ + u) * 32];
      }
    }
  }
  __device__ __forceinline__ void Store(const GemmArgs& a, uint8_t* inputs) {
    while (true) {
      StorePart(inputs);
      first_ += 4;
      if (first_ >= tiles_ / 2) first_ = 0, row_ += 4;  // and row + 2
      if (row_ >= tokens_) return;
      Ask(a);
    }
  }

 private:
  __device__ __forceinline__ bool Has(int j, int u) const { return row_ + 2 * j < tokens_ && first_ + u < tiles_ / 2; }
  __device__ __forceinline__ void StorePart(uint8_t* inputs) const {
    const int plane = tiles_ * 128, row_bytes = 2 * kWarps * plane, swap = FewSwap(row_);  // row + 2 has the same
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      uint8_t* to = inputs + (row_ + 2 * j) * row_bytes + warp_ * 2 * plane + (lane_ * 8 ^ swap);
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        if (!Has(j, u)) continue;
        const float4& x = part_[j][u];
        const Bf16Pairs low = SplitPairs(x.x, x.y), high = SplitPairs(x.z, x.w);
        *reinterpret_cast<uint2*>(to + (first_ + u) * 256) = make_uint2(low.hi, high.hi);
        *reinterpret_cast<uint2*>(to + (first_ + u) * 256 + plane) = make_uint2(low.lo, high.lo);
      }
    }
  }

  int tokens_, tiles_, row_, first_ = 0, warp_, lane_;
  float4 part_[2][4];
};

// Loads the warp's part of a chunk's hidden rows.
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

  // Requests stages of a known expert's row, before the chunks are known.
  __device__ __forceinline__ void AskKnown(const GemmArgs& a, const ExpertMatrices& m, int row) {
    PointAt(m.gate.codes, m.up.codes, IsBeside<F>(m.gate), row);
    for (; asked_ < min(2, tiles_ / kTiles); ++asked_) Copy(a);
  }
  // Sets the items, begin .. end - 1, and fills the ring with requests.
  __device__ __forceinline__ void Begin(const GemmArgs& a, const FewItems& items, const FewChunk* chunks, int begin,
                                        int end) {
    end_ = end;
    if (asked_ == 0) item_ = begin;
    for (; asked_ < 2; ++asked_) Ask(a, items, chunks);
  }
  // Requests the next stage, if any.
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

// The location of a lane's column of a chunk: its halves, and the distance to the next stage's.
struct FewColumn {
  uint32_t at = 0;
  int step = 0;

  FewColumn() = default;
  // Lane 4 g + t of the product has column g: g % 4 is the pair, g / 4 the plane. `planes`: the warp's part of row r;
  // for up of token r, for down of the chunk's pair r.
  template <typename Planes>
  __device__ __forceinline__ FewColumn(const FewChunk& chunk, int count, bool up, int num_slots, int g, int t,
                                       int plane, int stage_bytes, uint32_t zeros, const Planes& planes) {
    const int column = g % 4;
    const auto row_of = [&](int c) { return up ? chunk.pair[c] / num_slots : c; };
    if (column < count) {
      const int row = row_of(column);
      at = SharedAddress(planes(row) + g / 4 * plane) + 32 * t + FewSwap(row);
      step = stage_bytes;
    } else {  // zeros, in other banks than the neighbouring column
      const bool beside_one = column % 2 == 1 && column - 1 < count;
      at = zeros + 32 * t + (beside_one ? 16 - FewSwap(row_of(column - 1)) : 0);
    }
  }
};

__device__ __forceinline__ void StoreShared(uint32_t to, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}

// Stores column c of a lane's sums in a slot of the warps; the slot's rows begin at `to`.
__device__ __forceinline__ void StoreColumn(const float (&sum)[2][1][4], int c, uint32_t to, uint32_t full) {
  StoreShared(to, sum[0][0][c % 2]), StoreShared(to + 32, sum[0][0][2 + c % 2]);
  StoreShared(to + 64, sum[1][0][c % 2]), StoreShared(to + 96, sum[1][0][2 + c % 2]);
  BarrierArrive(full);
}

// Adds the sums of the planes.
__device__ __forceinline__ void AddPlanes(float (&sum)[2][1][4]) {
#pragma unroll
  for (int s = 0; s < 2; ++s) {
#pragma unroll
    for (int q = 0; q < 4; ++q) sum[s][0][q] += __shfl_xor_sync(0xFFFFFFFFu, sum[s][0][q], 2);
  }
}

// If all rows are padding rows: a chunk without pairs for the weights that were requested early.
template <WeightFormat F>
__device__ __forceinline__ void PlanNothing(const GemmArgs& a, FewChunk* chunks) {
  if (threadIdx.x == 0) {
    const ExpertMatrices& m = a.matrices[a.always];
    chunks[0] = {.codes0 = m.gate.codes, .codes1 = m.up.codes, .beside = IsBeside<F>(m.gate)};
  }
  __syncthreads();
}

// Initialises the barriers of a warp, by one lane: two of its ring, and its barriers of the team's sums.
__device__ __forceinline__ void InitFewBarriers(uint32_t ring_full, uint32_t sums_full, uint32_t sums_free) {
  BarrierInit(ring_full, 1), BarrierInit(ring_full + 8, 1);
  // every lane that stores; the warp that adds
  BarrierInit(sums_full, kWarps * 8), BarrierInit(sums_free, 1);
  BarrierInitFence();
  FenceAsyncShared();
}

// One kernel for both launches, as ExpertOneKernel. K is divided into whole stages.
template <WeightFormat F, int kTiles>
__global__ void __launch_bounds__(2 * kTeamThreads, 1) ExpertFewKernel(const GemmArgs a, const FewList list) {
  using P = FewPlaces<kTiles>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t ring_barriers[2 * kWarps][2], sum_barriers[2][2][kWarps];  // full, free
  __shared__ FewPlan plan;
  static_assert(sizeof ring_barriers + sizeof sum_barriers + sizeof plan <= kFewOwnShared);
  const bool up = list.up;
  if (!up) AllowNext();
  const int tiles = a.k / (64 * kWarps), plane = tiles * 128;  // per warp; bytes of one of its planes
  const int warp_of_block = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
  const int team = warp_of_block / kWarps, warp = warp_of_block % kWarps, lane = threadIdx.x % 32, g = lane / 4,
            t = lane % 4;
  const uint32_t base = __shfl_sync(0xFFFFFFFFu, SharedAddress(shared), 0), ring = base + warp_of_block * P::kRingBytes;
  const uint32_t ring_full = __shfl_sync(0xFFFFFFFFu, SharedAddress(ring_barriers[0]), 0) + 16 * warp_of_block,
                 sums_full = __shfl_sync(0xFFFFFFFFu, SharedAddress(sum_barriers[0][0]), 0) + 16 * kWarps * team,
                 sums_free = sums_full + 8 * kWarps;
  float* const sums = reinterpret_cast<float*>(shared + P::kSums) + team * kWarps * kFewSumFloats;
  // The address for the warp's first rows; through a shuffle, so that it stays in a register.
  const uint32_t sums_at = __shfl_sync(0xFFFFFFFFu, SharedAddress(sums + warp * 32 + g), lane);
  FewChunk* const chunks = reinterpret_cast<FewChunk*>(shared + P::kChunks);
  uint8_t* const inputs = shared + P::kChunks + list.pairs * static_cast<int>(sizeof(FewChunk));
  if (lane == 0) InitFewBarriers(ring_full, sums_full + 8 * warp, sums_free + 8 * warp);
  if (threadIdx.x < P::kZeroBytes / 4) reinterpret_cast<uint32_t*>(shared + P::kZeros)[threadIdx.x] = 0;
  __syncthreads();

  FewItems items(list);
  FewRequests<F, kTiles> requests(up, tiles, warp, ring, ring_full);
  const auto request = [&] { requests.Ask(a, items, chunks); };
  // ---- the list; for up the first team requests the known item before it ----
  int32_t expert;
  FewInputs x(list.tokens, tiles, team, warp, lane);
  if (up) {
    PrefetchMatrices<2 * kTeamThreads>(a);
    if (items.known > 0 && team == 0) {
      requests.AskKnown(a, a.matrices[a.always], items.first);
    }
    WaitForPrevious();
    AllowNext();  // after the wait: down requests weights before its own wait
    expert = ExpertOfPair(a, list);
    x.Ask(a);
  } else {
    expert = ExpertOfPair(a, list);
  }
  int num_chunks = PlanFew<F>(a, list, expert, plan, chunks);
  if (list.known && num_chunks == 0) {
    num_chunks = 1;
    PlanNothing<F>(a, chunks);
  }
  items.Cut(list, num_chunks);
  const int begin = team == 0 ? 0 : (items.count + 1) / 2;
  const int end = team == 0 ? (items.count + 1) / 2 : items.count;
  requests.Begin(a, items, chunks, begin, end);
  if (up) {  // weights are in flight while x is converted
    x.Store(a, inputs);
    __syncthreads();
  } else {
    WaitForPrevious();
    ClearFew(a, list, plan);
  }

  // ---- sums of a column ----
  struct {
    uint32_t parity;
    int pair = -1, row;
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
  int stage = 0, parity = 0, chunk_now = -1;
  uint32_t job = 0;
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
    AddPlanes(sum);
    add_up();
#pragma unroll
    for (int c = 0; c < kFewMembers; ++c) {
      if (c >= count) break;
      const uint32_t slot = job % kWarps, use = job / kWarps % 2;
      BarrierWait(sums_free + 8 * slot, use ^ 1);
      if (t == c / 2) {
        StoreColumn(sum, c, sums_at + slot * (kFewSumFloats * 4), sums_full + 8 * slot);
      }
      if (slot == static_cast<uint32_t>(warp))
        due = {.parity = use, .pair = chunk.pair[c], .row = item.row, .scale0 = chunk.scale0, .scale1 = chunk.scale1};
      ++job;
    }
  }
  add_up();
}

}  // namespace dsv4::experts
