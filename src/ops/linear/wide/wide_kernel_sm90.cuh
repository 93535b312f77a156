// The kernel of wide_linear_sm90.cu. A unit is 128 rows of W, kTokens tokens (32 or 64) and some of K's segments. Two
// warps copy weights and inputs into rings of shared memory (gemm_sm90.cuh). Two warpgroups decode 64 rows each and
// multiply them with 2 kTokens columns: the tokens' first terms and their second terms.
#pragma once

#include "ops/linear/wide/wide_inputs_sm90.cuh"
#include "ops/linear/wide/wide_weights_sm90.cuh"

namespace dsv4::wide_linear {

using sm90::GemmMatrix;
using sm90::GemmShared;
using sm90::kGemmThreads;
using sm90::WarpRows;

constexpr int kInputStages = 6;
constexpr int kMultipliers = 256;                      // threads
constexpr int Sums(int tokens) { return tokens / 2; }  // of a thread: rows g and g + 8 of a quarter of the tokens
// Sums that wait for other sums, one per level of the tree of eight segments: the first two levels in shared memory,
// the third, which a unit needs once, in scratch memory.
constexpr int kLevels = 3, kSharedLevels = 2;
constexpr int UnitSumsBytes(int tokens) { return kMultipliers * Sums(tokens) * 4; }

constexpr int SharedBytes(WeightFormat f, int tokens) {
  return 1024 + kInputStages * InputBytes(tokens) + sm90::kStages * sm90::ChunkBytes(f) +
         kSharedLevels * UnitSumsBytes(tokens) + 512;
}
static_assert(SharedBytes(WeightFormat::kBf16, kManyTokens) <= static_cast<int>(kSharedMemoryOfABlock));
static_assert(kInputStages <= sm90::kMostTokenStages);

// A format's sums of a segment: even and odd tiles have separate sums if chunks have several tiles (tile_linear.cuh).
template <WeightFormat F>
constexpr int kParities = TilesOfChunk(F) > 1 ? 2 : 1;

// Registers of a thread: at the start of a block, then by role. Blocks of 32 tokens leave room for InputsKernel, so
// that their first weights arrive while x is converted.
struct Registers {
  int start, copying, multiplying;
};
constexpr Registers RegistersOf(int tokens) {
  return tokens == kFewTokens ? Registers{104, 32, 136} : Registers{168, 40, 232};
}

struct Params {
  const uint8_t* inputs;    // Inputs::out
  const float* row_scales;  // or null
  float4* kept;             // [block][tokens / 8][thread]: the third level
  float4* parts;            // [output][split][warp][tokens / 8][lane]: sums of units, if several units have one output
  int* counters;            // [output][warp]: units that have written their sums; zero between launches
  GemmMatrix matrices[kMaxTileLinearMatrices];
  int count;
  int num_tokens, tile_tokens, token_tiles, groups, slabs, scale_stride;
  int row_steps;  // of a group; 128 rows each
  int log_segments, log_splits;

  __host__ __device__ int outputs() const { return groups * row_steps * token_tiles; }
  __host__ __device__ int units() const { return outputs() << log_splits; }
};

// In the order of units the token tiles of the same weights come first, then the splits of one output.
struct Unit {
  int matrix, group, token_tile, row_tile0, row_tile_end;  // row tiles of the whole matrix
  int output, split;

  __device__ __forceinline__ static int SplitOf(const Params& p, int unit) {
    return unit / p.token_tiles & ((1 << p.log_splits) - 1);
  }
  __device__ __forceinline__ Unit(const Params& p, int unit) {
    token_tile = unit % p.token_tiles;
    const int row = unit / p.token_tiles >> p.log_splits, step = row % p.row_steps;
    split = SplitOf(p, unit);
    group = row / p.row_steps;
    output = row * p.token_tiles + token_tile;
    matrix = 0;
    while (matrix + 1 < p.count && step >= p.matrices[matrix + 1].first_step) ++matrix;
    const int n = p.matrices[matrix].n;
    row_tile0 = group * n / 16 + (step - p.matrices[matrix].first_step) * sm90::kRowTiles;
    row_tile_end = ((group + 1) * n + 15) / 16;
  }
};

// A unit's segments, and the slabs (64 columns) of each.
__device__ __forceinline__ int SegmentsOfUnit(const Params& p) { return 1 << (p.log_segments - p.log_splits); }
__device__ __forceinline__ int FirstSlab(const Params& p, int segment) { return p.slabs * segment >> p.log_segments; }
__device__ __forceinline__ int SlabsOf(const Params& p, int segment) {
  return FirstSlab(p, segment + 1) - FirstSlab(p, segment);
}

struct Shared {
  GemmShared gemm;
  float4* kept;  // [level][tokens / 8][thread]
};

template <WeightFormat F, int kTokens>
__device__ __forceinline__ Shared Carve(uint8_t* memory) {
  Shared s;
  GemmShared& g = s.gemm;
  const uint32_t raw = SharedAddress(memory);
  g.tokens = (raw + 1023) & ~1023u;
  g.weights = g.tokens + kInputStages * InputBytes(kTokens);
  g.staging = g.weights + sm90::kStages * sm90::ChunkBytes(F);
  g.staging_memory = memory + (g.staging - raw);
  s.kept = reinterpret_cast<float4*>(g.staging_memory);
  g.token_full = g.staging + kSharedLevels * UnitSumsBytes(kTokens);
  g.token_empty = g.token_full + 8 * sm90::kMostTokenStages;
  g.weight_full = g.token_empty + 8 * sm90::kMostTokenStages;
  g.weight_empty = g.weight_full + 8 * sm90::kStages;
  return s;
}

// ---- copying ----

template <WeightFormat F>
__device__ __forceinline__ void CopyAllWeights(const GemmShared& s, const Params& p) {
  constexpr int kTile = static_cast<int>(TileBytes(F));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  sm90::Ring<> ring;
  for (int i = static_cast<int>(blockIdx.x); i < p.units(); i += static_cast<int>(gridDim.x)) {
    const Unit unit(p, i);
    const int row_tile = unit.row_tile0 + lane, segments = SegmentsOfUnit(p);
    for (int j = 0; j < segments; ++j) {
      const int first = FirstSlab(p, unit.split * segments + j), end = FirstSlab(p, unit.split * segments + j + 1);
      const uint8_t* codes = nullptr;
      if (row_tile < unit.row_tile_end)
        codes = p.matrices[unit.matrix].codes + (static_cast<int64_t>(row_tile) * p.slabs + first) * kTile;
      sm90::CopyWeights<F>(s, ring, codes, end - first);
    }
  }
}

template <int kTokens>
__device__ __forceinline__ void CopyAllInputs(const GemmShared& s, const Params& p) {
  constexpr int kInputBytes = InputBytes(kTokens);
  sm90::Ring<kInputStages> ring;
  for (int i = static_cast<int>(blockIdx.x); i < p.units(); i += static_cast<int>(gridDim.x)) {
    const Unit unit(p, i);
    const int segments = SegmentsOfUnit(p), first = FirstSlab(p, unit.split * segments),
              end = FirstSlab(p, (unit.split + 1) * segments);
    const int64_t tile = (static_cast<int64_t>(unit.group) * p.slabs + first) * p.token_tiles + unit.token_tile;
    sm90::CopyTokens<1, kInputBytes>(s, ring, p.inputs + tile * kInputBytes, kInputBytes,
                                     static_cast<int64_t>(p.token_tiles) * kInputBytes, end - first);
  }
}

// ---- multiplying ----

using Position = sm90::Position<kInputStages>;

__device__ __forceinline__ void GiveInputsBack(const GemmShared& s, const Position& at, uint32_t stages_ago) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) BarrierArrive(s.token_empty + 8 * ((at.tokens.count - stages_ago) % kInputStages));
}

// Loads the next slab's weights; waits at a chunk's first slab. `odd`: of a segment's slabs.
template <WeightFormat F, int kOdd>
__device__ __forceinline__ void LoadSlab(const GemmShared& s, const Position& at, const WarpRows& rows,
                                         Weights<F>& raw) {
  constexpr bool kOne = sm90::ChunkSlabs(F) == 1;
  if (kOdd == 0 || kOne) BarrierWaitOrTrap(s.weight_full + 8 * at.weights.stage(), at.weights.parity());
  const uint32_t in_chunk = kOne ? 0 : kOdd * static_cast<uint32_t>(TileBytes(F));
  raw.Load(s.weights + at.weights.stage() * sm90::ChunkBytes(F) + in_chunk, rows, threadIdx.x % 32);
}
template <WeightFormat F, int kOdd>
__device__ __forceinline__ void DecodeSlab(const GemmShared& s, Position& at, const Weights<F>& raw, bool last,
                                           uint32_t (&a)[16]) {
  raw.Decode(a);
  if (kOdd == 0 && sm90::ChunkSlabs(F) > 1 && !last) return;
  BarrierArrive(s.weight_empty + 8 * at.weights.stage());
  ++at.weights.count;
}
// Starts the products of a slab. `add`: adds them to `acc`.
template <int kTokens>
__device__ __forceinline__ void StartProducts(const GemmShared& s, Position& at, const uint32_t (&a)[16], bool add,
                                              float (&acc)[kTokens]) {
  BarrierWaitOrTrap(s.token_full + 8 * at.tokens.stage(), at.tokens.parity());
  sm90::WgmmaFence();
  const uint64_t b = sm90::SwizzledRows(s.tokens + at.tokens.stage() * InputBytes(kTokens));
#pragma unroll
  for (int k = 0; k < 4; ++k) sm90::Wgmma<ColumnsOf(kTokens)>::Run(acc, a + 4 * k, b + 2 * k, add || k > 0);
  sm90::WgmmaCommit();
  ++at.tokens.count;
}

template <int kCount, int kTokens>
__device__ __forceinline__ void Clear(float (&acc)[kCount][kTokens]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int j = 0; j < kTokens; ++j) acc[i][j] = 0;
  }
}

// Decoded slabs, even and odd; `ready`: the first slab of the next segment is decoded.
struct Decoded {
  uint32_t a[2][16];
  bool ready = false;
};

// acc = a segment's sums. A slab is decoded while the previous one is multiplied; after an odd last slab so is the
// first slab of the next segment (of `next_slabs`; 0: none).
template <WeightFormat F, int kTokens>
__device__ __forceinline__ void MultiplySegment(const GemmShared& s, Position& at, const WarpRows& rows, int slabs,
                                                int next_slabs, Decoded& decoded, float (&acc)[kParities<F>][kTokens]) {
  Weights<F> raw;
  const auto step = [&]<int kOdd>(int slab) {
    const bool more = slab + 1 < slabs, next = more || (kOdd == 1 && next_slabs > 0);
    StartProducts(s, at, decoded.a[kOdd], true, acc[kOdd % kParities<F>]);
    if (next) LoadSlab<F, 1 - kOdd>(s, at, rows, raw);
    sm90::WgmmaWait<1>();
    if (kOdd == 1 || slab > 0) GiveInputsBack(s, at, 2);
    if (next) DecodeSlab<F, 1 - kOdd>(s, at, raw, more ? slab + 2 == slabs : next_slabs == 1, decoded.a[1 - kOdd]);
    return more;
  };
  Clear(acc);
  if (!decoded.ready) {
    LoadSlab<F, 0>(s, at, rows, raw);
    DecodeSlab<F, 0>(s, at, raw, slabs == 1, decoded.a[0]);
  }
  decoded.ready = slabs % 2 == 0 && next_slabs > 0;
  for (int slab = 0;; slab += 2) {
    if (!step.template operator()<0>(slab)) break;
    if (!step.template operator()<1>(slab + 1)) break;
  }
  sm90::WgmmaWait<0>();
#pragma unroll
  for (int i = 0; i < kParities<F>; ++i) sm90::HoldSums(acc[i]);
  GiveInputsBack(s, at, 1);
}

// The same for FP8, whose scales multiply the sums of a slab: scales[i] are for slabs 2 i and 2 i + 1 of all K. While
// one warpgroup scales and decodes, the other one multiplies.
template <int kTokens>
__device__ __forceinline__ void MultiplyScaledSegment(const GemmShared& s, Position& at, const WarpRows& rows,
                                                      const float* scales, int first, int slabs,
                                                      float (&acc)[2][kTokens]) {
  constexpr WeightFormat kFp8 = WeightFormat::kFp8Block;
  Weights<kFp8> raw;
  uint32_t a[16];
  float sum[kTokens];
  const auto step = [&]<int kOdd>(int slab) {
    const bool more = slab + 1 < slabs;
    const float scale = __ldg(scales + (first + slab) / 2);
    LoadSlab<kFp8, kOdd>(s, at, rows, raw);
    DecodeSlab<kFp8, kOdd>(s, at, raw, !more, a);
    StartProducts(s, at, a, false, sum);
    sm90::WgmmaWait<0>();
    sm90::HoldSums(sum);
    GiveInputsBack(s, at, 1);
#pragma unroll
    for (int i = 0; i < kTokens; ++i) acc[kOdd][i] = fmaf(scale, sum[i], acc[kOdd][i]);
    return more;
  };
  Clear(acc);
  for (int slab = 0;; slab += 2) {
    if (!step.template operator()<0>(slab)) break;
    if (!step.template operator()<1>(slab + 1)) break;
  }
}

// Adds the sums of even and odd tiles, then the sums of both terms. v[4 j + 2 r + i]: row g + 8 r, token 8 j + 2 t + i.
template <int kCount, int kTokens>
__device__ __forceinline__ void Join(const float (&acc)[kCount][kTokens], float (&v)[kTokens / 2]) {
  constexpr int kSums = Sums(kTokens);
  const auto both = [&](int i) { return acc[0][i] + (kCount > 1 ? acc[kCount - 1][i] : 0.0f); };
#pragma unroll
  for (int i = 0; i < kSums; ++i) v[i] = both(i) + both(i + kSums);
}

__device__ __forceinline__ void AddTo(float4 other, float* v) {
  v[0] = other.x + v[0], v[1] = other.y + v[1], v[2] = other.z + v[2], v[3] = other.w + v[3];
}

// Adds segment `index` of `count`, a power of two; with the last segment v becomes the sum of the whole unit. A
// balanced tree: a complete sum waits on its level for its neighbour.
template <int kSums>
__device__ __forceinline__ void AddSegment(float4* shared, float4* memory, int index, int count, float (&v)[kSums]) {
  const int thread = static_cast<int>(threadIdx.x) - (kGemmThreads - kMultipliers);
#pragma unroll
  for (int level = 0; level < kLevels; ++level) {
    if (count >> level == 1) return;
    float4* const kept = (level < kSharedLevels ? shared + level * (kSums / 4 * kMultipliers) : memory) + thread;
    const bool first = (index >> level & 1) == 0;
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
      float4& at = kept[i * kMultipliers];
      if (first) {
        at = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
      } else {
        AddTo(at, v + 4 * i);
      }
    }
    if (first) return;
  }
}

// ---- outputs ----

__device__ __forceinline__ float4 Sum(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Writes a warp's sums of a unit to scratch memory. The last unit gets the sums of all, as a balanced tree, and true.
template <int kSums>
__device__ __forceinline__ bool AddSplits(const Params& p, const Unit& unit, int warp, float (&v)[kSums]) {
  constexpr int kWarpPart = kSums / 4 * 32, kUnitPart = 8 * kWarpPart;
  const int lane = static_cast<int>(threadIdx.x) % 32, splits = 1 << p.log_splits;
  float4* const parts = p.parts + static_cast<int64_t>(unit.output) * splits * kUnitPart + warp * kWarpPart + lane;
#pragma unroll
  for (int i = 0; i < kSums / 4; ++i) {
    parts[unit.split * kUnitPart + i * 32] = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
  }
  __threadfence();
  __syncwarp();
  int* const counter = p.counters + unit.output * 8 + warp;
  int before = 0;
  if (lane == 0) before = atomicAdd(counter, 1);
  if (__shfl_sync(~0u, before, 0) != splits - 1) return false;
  if (lane == 0) *counter = 0;
  __threadfence();
#pragma unroll
  for (int i = 0; i < kSums / 4; ++i) {
    const auto pair = [&](int split) {
      return Sum(__ldcg(parts + split * kUnitPart + i * 32), __ldcg(parts + (split + 1) * kUnitPart + i * 32));
    };
    float4 sum = pair(0);
    if (splits >= 4) sum = Sum(sum, pair(2));
    if (splits >= 8) sum = Sum(sum, Sum(pair(4), pair(6)));
    v[4 * i] = sum.x, v[4 * i + 1] = sum.y, v[4 * i + 2] = sum.z, v[4 * i + 3] = sum.w;
  }
  return true;
}

template <int kTokens>
__device__ __forceinline__ void StoreRows(const Params& p, const Unit& unit, int row_tile, float (&v)[kTokens / 2]) {
  const GemmMatrix& m = p.matrices[unit.matrix];
  const int token0 = unit.token_tile * kTokens, t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = min(token0 + 8 * j + 2 * t + i, p.num_tokens - 1);
      const float factor = p.row_scales != nullptr ? m.factor * __ldcg(p.row_scales + token) : m.factor;
      v[4 * j + i] *= factor;
      v[4 * j + 2 + i] *= factor;
    }
  }
  const int row = row_tile * 16 - unit.group * m.n;  // negative if a group does not begin at a tile
  const int64_t stride = m.y_stride;
  float* const y = m.y + token0 * stride + unit.group * m.n + row;
  sm90::StoreSums<kTokens>(v, {1, 1}, p.num_tokens - token0, -row, m.n - row,
                           [&](int, int token) { return y + token * stride; });
}

template <WeightFormat F, int kTokens>
__global__ void __maxnreg__(RegistersOf(kTokens).start) WideLinearKernel(const __grid_constant__ Params p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t memory[];
  const Shared shared = Carve<F, kTokens>(memory);
  const GemmShared& s = shared.gemm;
  AllowNext();
  sm90::InitBarriers(s);
  const int warpgroup = static_cast<int>(threadIdx.x / 128), warp = static_cast<int>(threadIdx.x / 32 % 4);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (warpgroup == 0) {
    sm90::FewerRegisters<RegistersOf(kTokens).copying>();
    if (warp == 0) return CopyAllWeights<F>(s, p);  // no kernel writes them, so this warp does not wait
    if (warp != 1) return;
    WaitForPrevious();
    if (lane == 0) CopyAllInputs<kTokens>(s, p);
  } else {
    sm90::MoreRegisters<RegistersOf(kTokens).multiplying>();
    WaitForPrevious();
    const int tile_of_block = 4 * (warpgroup - 1) + warp;
    const uint32_t offset = static_cast<uint32_t>(tile_of_block * sm90::ChunkTileBytes(F) + 16 * lane);
    const WarpRows rows = {offset, offset, 0};
    const int segments = SegmentsOfUnit(p);
    float4* const kept = p.kept + static_cast<int64_t>(blockIdx.x) * (UnitSumsBytes(kTokens) / 16);
    Position position;
    [[maybe_unused]] Decoded decoded;
    for (int i = static_cast<int>(blockIdx.x); i < p.units(); i += static_cast<int>(gridDim.x)) {
      const Unit unit(p, i);
      const int row_tile = unit.row_tile0 + tile_of_block;
      float v[Sums(kTokens)];
      for (int j = 0; j < segments; ++j) {
        const int segment = unit.split * segments + j, slabs = SlabsOf(p, segment);
        float acc[kParities<F>][kTokens];
        if constexpr (HasScalesBeside(F)) {
          const int scale_row = min(row_tile, unit.row_tile_end - 1);
          const float* scales = p.matrices[unit.matrix].scales + static_cast<int64_t>(scale_row) * p.scale_stride;
          MultiplyScaledSegment<kTokens>(s, position, rows, scales, FirstSlab(p, segment), slabs, acc);
        } else {
          const int next = i + static_cast<int>(gridDim.x), next_split = Unit::SplitOf(p, next);
          const int next_slabs = j + 1 < segments   ? SlabsOf(p, segment + 1)
                                 : next < p.units() ? SlabsOf(p, next_split * segments)
                                                    : 0;
          MultiplySegment<F, kTokens>(s, position, rows, slabs, next_slabs, decoded, acc);
        }
        Join(acc, v);
        AddSegment(shared.kept, kept, j, segments, v);
      }
      if (row_tile >= unit.row_tile_end) continue;
      if (p.log_splits > 0 && !AddSplits(p, unit, tile_of_block, v)) continue;
      StoreRows<kTokens>(p, unit, row_tile, v);
    }
  }
#endif
}

}  // namespace dsv4::wide_linear
