// Products of packed weights with many activations, for Hopper: D[weight rows, tokens] = W[rows, K] X[tokens, K]^T.
//
// A block multiplies 128 weight rows with up to 256 tokens. Two warps copy weight tiles (src/ops/pack_weight) and
// activations into rings of shared memory. Two warpgroups decode 64 rows each into registers, exactly, and pass them to
// wgmma as its A operand while the next 64 columns are decoded. Sums are float32, over K in one fixed order: a row's
// bits do not depend on the number of tokens.
//
// Registers: the multiplying warps get 232 by setmaxnreg, the copying warps 40. The compiler uses these numbers only
// under three conditions. The roles are the two branches of one if; copying warps without work return first; and no
// code follows the loop over tiles in the multiplying branch. Otherwise it reports C7512 and waits after every wgmma.
//
// NVFP4 and FP8 codes times a power of two are exact in FP16, so their activations are also FP16: 10 fraction bits,
// saturated at +-65504. MXFP4's scales and BF16 weights have BF16's range, so their activations are BF16.
//
// Activations are in blocks (activation_blocks.cuh), so that any rows of one column block are one contiguous copy. With
// two terms (the second is the rounded rest of the first) the column blocks of the terms alternate, c = 2 slab + part,
// and decoded weights multiply both.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device/barrier.cuh"
#include "ops/activation_blocks.cuh"
#include "ops/pack_weight/pack_weight.h"
#include "ops/tile_mma.cuh"
#include "ops/wgmma.cuh"

namespace dsv4::sm90 {

// Whether weights and activations are FP16.
template <WeightFormat kFormat>
inline constexpr bool kHalf = IsHalf(kFormat);

inline constexpr int kGemmThreads = 384;              // warpgroup 0 copies, 1 and 2 multiply
inline constexpr int kMaxTokens = 256;                // tokens of a block's tile
inline constexpr int kRowTiles = 8;                   // tiles of 16 rows per block
inline constexpr int kTokenBytes = kMaxTokens * 128;  // bytes of a stage, at most
inline constexpr int kStagingBytes = 32 * 1024;

inline constexpr int kStages = 4;  // stages of the ring of weights

// Stages of the activations' ring, powers of two. A product uses two stages; the others must bridge the time of a copy.
constexpr int TokenStages(int n, int parts) { return n * parts <= 128 && n > 64 ? 2 * kStages : kStages; }
inline constexpr int kMostTokenStages = 2 * kStages;

// Slabs (64 columns) of weights that are copied together: 1 to 2 KiB per row tile.
constexpr int ChunkSlabs(WeightFormat f) { return TileBytes(f) <= 1024 ? 2 : 1; }
constexpr int ChunkTileBytes(WeightFormat f) { return ChunkSlabs(f) * static_cast<int>(TileBytes(f)); }
constexpr int ChunkBytes(WeightFormat f) { return kRowTiles * ChunkTileBytes(f); }

// Tiles of few tokens: decoding is most of the work, and one warp decodes at the latency of dependent instructions. Two
// blocks on a multiprocessor, with twice as many warps, take half the time.
constexpr bool IsSmall(int n) { return n <= 64; }
constexpr int TokenStageBytes(int n, int parts) {
  return IsSmall(n) ? n * parts * 128 : kStages * kTokenBytes / TokenStages(n, parts);
}
constexpr int StagingBytes(int n) { return IsSmall(n) ? n * 128 : kStagingBytes; }
constexpr int GemmSharedBytes(WeightFormat f, int n, int parts) {
  return 1024 + TokenStages(n, parts) * TokenStageBytes(n, parts) + kStages * ChunkBytes(f) + StagingBytes(n) + 512;
}
constexpr int BlocksOfSm(WeightFormat f, int n, int parts) {
  return IsSmall(n) && GemmSharedBytes(f, n, parts) <= 113 * 1024 ? 2 : 1;
}

struct GemmShared {
  uint32_t tokens, weights, staging;
  uint32_t token_full, token_empty, weight_full, weight_empty;  // barriers, one per stage
  uint8_t* staging_memory;
};

template <WeightFormat kFormat, int kN, int kParts>
__device__ __forceinline__ GemmShared CarveShared(uint8_t* memory) {
  GemmShared s;
  const uint32_t raw = SharedAddress(memory);
  s.tokens = (raw + 1023) & ~1023u;
  s.weights = s.tokens + TokenStages(kN, kParts) * TokenStageBytes(kN, kParts);
  s.staging = s.weights + kStages * ChunkBytes(kFormat);
  s.staging_memory = memory + (s.staging - raw);
  s.token_full = s.staging + StagingBytes(kN);
  s.token_empty = s.token_full + 8 * kMostTokenStages;
  s.weight_full = s.token_empty + 8 * kMostTokenStages;
  s.weight_empty = s.weight_full + 8 * kStages;
  return s;
}

__device__ __forceinline__ void InitBarriers(const GemmShared& s) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kMostTokenStages; ++i) {
      BarrierInit(s.token_full + 8 * i, 1);
      BarrierInit(s.token_empty + 8 * i, 8);  // the multiplying warps
    }
    for (int i = 0; i < kStages; ++i) {
      BarrierInit(s.weight_full + 8 * i, 1);
      BarrierInit(s.weight_empty + 8 * i, 256);  // their threads, after each has read
    }
    BarrierInitFence();
  }
  __syncthreads();
}

// One of the matrices that a launch multiplies with the same activations.
struct GemmMatrix {
  const uint8_t* codes;
  const float* scales;  // FP8
  float* y;             // of the first token
  float factor;
  int n, y_stride;  // rows of a group; rows of all groups
  int first_step;   // its first step of kRowTiles row tiles
};

// A place in a ring: the number of stages passed.
template <uint32_t kCount = kStages>
struct Ring {
  uint32_t count = 0;
  __device__ __forceinline__ uint32_t stage() const { return count % kCount; }
  __device__ __forceinline__ uint32_t parity() const { return count / kCount % 2; }
};

// The place of a multiplying warp in both rings.
template <uint32_t kTokenStages>
struct Position {
  Ring<kTokenStages> tokens;
  Ring<> weights;
};

// One warp copies the weights of one tile. `row_tile`: lane i < 8's row tile (null: past the end, not copied).
template <WeightFormat kFormat>
__device__ __forceinline__ void CopyWeights(const GemmShared& s, Ring<>& ring, const uint8_t* row_tile, int num_slabs) {
  constexpr uint32_t kTile = TileBytes(kFormat);
  const uint32_t lane = threadIdx.x % 32;
  const bool mine = lane < kRowTiles && row_tile != nullptr;
  const uint32_t copies = __popc(__ballot_sync(~0u, mine));
  for (int slab = 0; slab < num_slabs; slab += ChunkSlabs(kFormat), ++ring.count) {
    const uint32_t bytes = static_cast<uint32_t>(min(ChunkSlabs(kFormat), num_slabs - slab)) * kTile;
    const uint32_t full = s.weight_full + 8 * ring.stage();
    BarrierWaitOrTrap(s.weight_empty + 8 * ring.stage(), ring.parity() ^ 1);
    if (lane == 0) BarrierExpect(full, bytes * copies);
    __syncwarp();
    if (mine) {
      const uint32_t to = s.weights + ring.stage() * ChunkBytes(kFormat) + lane * ChunkTileBytes(kFormat);
      BulkLoad(to, row_tile + slab * kTile, bytes, full);
    }
  }
}

// One thread copies the activations of one tile. Both terms share a stage, because two terms are for tiles of up to 128
// tokens.
template <int kParts, int kStageBytes, uint32_t kCount>
__device__ __forceinline__ void CopyTokens(const GemmShared& s, Ring<kCount>& ring, const uint8_t* tokens,
                                           uint32_t bytes, int64_t stride, int num_slabs) {
  for (int slab = 0; slab < num_slabs; ++slab, ++ring.count) {
    const uint32_t full = s.token_full + 8 * ring.stage();
    BarrierWaitOrTrap(s.token_empty + 8 * ring.stage(), ring.parity() ^ 1);
    BarrierExpect(full, bytes * kParts);
#pragma unroll
    for (uint32_t part = 0; part < kParts; ++part, tokens += stride) {
      BulkLoad(s.tokens + ring.stage() * kStageBytes + part * (kStageBytes / kParts), tokens, bytes, full);
    }
  }
}

// ---- FP8's float32 scales, one for 16 rows x 128 columns ----
// A scale that is a power of two in [2^-22, 1] (or 0) is applied exactly by the decoder. Otherwise the sums are kept in
// units of the current scale: when the scale changes, they are multiplied by old / new, in float32.

__device__ __forceinline__ bool FoldsExactly(float scale) {
  const uint32_t bits = __float_as_uint(scale);
  return bits == 0 || ((bits & 0x7FFFFFu) == 0 && bits >= (105u << 23) && bits <= (127u << 23));
}

// Scale * 2^15 as an FP16 pair, for a scale with FoldsExactly: decoded weights are then 2^7 times their value.
__device__ __forceinline__ uint32_t FoldedScale(float scale) {
  const uint32_t bits = __float_as_uint(scale) >> 23;
  return bits == 0 ? 0 : ((bits - 97u) << 10) * 0x00010001u;
}

struct Fp8Scales {
  const float* row[2] = {};  // scales of the rows g and g + 8; null: not FP8
};

// Whether FoldsExactly holds for all scales of a warpgroup's tile. Called by all its threads.
__device__ __forceinline__ bool AllFold(const Fp8Scales& scales, int num_slabs, int barrier) {
  bool odd = false;
  for (int i = static_cast<int>(threadIdx.x % 32); i < (num_slabs + 1) / 2; i += 32) {
    odd = odd || (scales.row[0] != nullptr &&
                  !(FoldsExactly(__ldg(scales.row[0] + i)) && FoldsExactly(__ldg(scales.row[1] + i))));
  }
  return !NamedBarrierOr(barrier, 128, odd);
}

// Keeps reads of the sums after the wait that precedes this call.
template <int kCount>
__device__ __forceinline__ void HoldSums(float (&r)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(r[i])::"memory");
}

template <int kCount>
__device__ __forceinline__ void Clear(float (&r)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) r[i] = 0;
}

// Computes how a slab's weights are scaled. `next`: the scales of its rows g and g + 8. fold: the factor of the
// decoder. With kRescale, ratio: the factor of the sums; unit: the unit of the sums. `changes`: the scale may differ
// from the previous slab's.
template <bool kRescale>
__device__ __forceinline__ void FoldScales(const float (&next)[2], bool changes, uint32_t (&fold)[2], float (&ratio)[2],
                                           float (&unit)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if constexpr (kRescale) {
      const float scale = next[r];
      const bool usable = scale != 0 && fabsf(scale) < __int_as_float(0x7F800000);
      ratio[r] = usable && changes ? unit[r] / scale : 1.0f;
      unit[r] = usable ? scale : unit[r];
      fold[r] = usable ? 0x78007800u : (scale == 0 ? 0u : 0x7E007E00u);  // 2^15, 0, NaN
    } else {
      fold[r] = FoldedScale(next[r]);
    }
  }
}

// acc = sum over the tile's slabs; the caller multiplies it by unit[0] (rows g) and unit[1] (rows g + 8).
template <WeightFormat kFormat, int kN, int kParts, bool kPaired, bool kRescale>
__device__ __forceinline__ void MultiplySlabs(const GemmShared& s, Position<TokenStages(kN, kParts)>& at,
                                              const WarpRows& rows, const Fp8Scales& scales, int num_slabs,
                                              float (&acc)[kN / 2], float (&unit)[2]) {
  static_assert(kN * kParts <= kMaxTokens);
  constexpr bool kFp8 = HasScalesBeside(kFormat);
  constexpr int kChunk = ChunkSlabs(kFormat);
  constexpr uint32_t kStage = TokenStageBytes(kN, kParts);
  const uint32_t lane = threadIdx.x % 32;
  uint32_t fold[2] = {};
  float ratio[2] = {1, 1}, next_scale[2] = {};
  RawWeights<kFormat> raw;
  uint32_t a[2][16];

  const auto load_scale = [&](int slab) {
    if constexpr (kFp8) {
      if (slab < num_slabs && scales.row[0] != nullptr) {
        next_scale[0] = __ldg(scales.row[0] + slab / 2);
        next_scale[1] = __ldg(scales.row[1] + slab / 2);
      }
    }
  };
  // `kOdd`: whether the slab is odd, for chunks of two.
  const auto load = [&]<int kOdd>() {
    if (kOdd == 0 || kChunk == 1) BarrierWaitOrTrap(s.weight_full + 8 * at.weights.stage(), at.weights.parity());
    const uint32_t in_chunk = kChunk == 1 ? 0 : kOdd * static_cast<uint32_t>(TileBytes(kFormat));
    raw.template Load<kPaired>(s.weights + at.weights.stage() * ChunkBytes(kFormat) + in_chunk, rows, lane);
  };
  const auto decode = [&]<int kOdd>(int slab, uint32_t(&to)[16]) {
    if constexpr (kFp8) FoldScales<kRescale>(next_scale, kOdd == 0, fold, ratio, unit);
    raw.Decode(fold, to);
    if (kOdd == 1) load_scale(slab + 1);
    if (kOdd == 1 || kChunk == 1 || slab + 1 == num_slabs) {
      BarrierArrive(s.weight_empty + 8 * at.weights.stage());
      ++at.weights.count;
    }
  };
  const auto multiply = [&]<int kOdd>(int slab, uint32_t(&from)[16]) {
    if constexpr (kRescale && kOdd == 0) {
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) acc[i] *= ratio[i / 2 % 2];
    }
    BarrierWaitOrTrap(s.token_full + 8 * at.tokens.stage(), at.tokens.parity());
    WgmmaFence();
#pragma unroll
    for (uint32_t part = 0; part < kParts; ++part) {
      const uint64_t b = SwizzledRows(s.tokens + at.tokens.stage() * kStage + part * (kStage / kParts));
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Wgmma<kN, kHalf<kFormat>>::Run(acc, from + 4 * k, b + 2 * k, kOdd == 1 || slab > 0 || k > 0 || part > 0);
      }
    }
    WgmmaCommit();
    ++at.tokens.count;
  };
  const auto give_back = [&](uint32_t stages_ago) {
    __syncwarp();
    if (lane == 0) BarrierArrive(s.token_empty + 8 * ((at.tokens.count - stages_ago) % TokenStages(kN, kParts)));
  };
  // Starts the products of one slab and loads the next slab, which it decodes when the registers of the previous slab
  // are free.
  const auto step = [&]<int kOdd>(int slab, uint32_t(&now)[16], uint32_t(&next)[16]) {
    const bool more = slab + 1 < num_slabs;
    multiply.template operator()<kOdd>(slab, now);
    if (more) load.template operator()<1 - kOdd>();
    WgmmaWait<kRescale ? 0 : 1>();
    if constexpr (kRescale) HoldSums(acc);
    if (kRescale || kOdd == 1 || slab > 0) give_back(kRescale ? 1 : 2);
    if (more) decode.template operator()<1 - kOdd>(slab + 1, next);
    return more;
  };

  Clear(acc);
  unit[0] = unit[1] = 1;
  load_scale(0);
  load.template operator()<0>();
  decode.template operator()<0>(0, a[0]);
  for (int slab = 0;; slab += 2) {
    if (!step.template operator()<0>(slab, a[0], a[1])) break;
    if (!step.template operator()<1>(slab + 1, a[1], a[0])) break;
  }
  WgmmaWait<0>();
  HoldSums(acc);
  if (!kRescale) give_back(1);
}

template <WeightFormat kFormat, int kN, int kParts, bool kPaired>
__device__ __forceinline__ void MultiplyTile(const GemmShared& s, Position<TokenStages(kN, kParts)>& at,
                                             const WarpRows& rows, const Fp8Scales& scales, int num_slabs,
                                             float (&acc)[kN / 2], float (&unit)[2]) {
  if constexpr (HasScalesBeside(kFormat)) {
    if (!AllFold(scales, num_slabs, 1 + static_cast<int>(threadIdx.x / 128))) {
      MultiplySlabs<kFormat, kN, kParts, kPaired, true>(s, at, rows, scales, num_slabs, acc, unit);
      return;
    }
  }
  MultiplySlabs<kFormat, kN, kParts, kPaired, false>(s, at, rows, scales, num_slabs, acc, unit);
}

// The factor of a format that is applied at the end.
template <WeightFormat kFormat>
__device__ __forceinline__ float FormatScale() {
  return WgmmaFactor(kFormat);
}

__device__ __forceinline__ void StoreIf(bool wanted, float* p, float v) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p st.global.f32 [%0], %1;\n}" ::"l"(p), "f"(v),
               "r"(static_cast<uint32_t>(wanted))
               : "memory");
}

// Stores a warp's 16 rows of the sums, times scale[0] (rows g) and scale[1] (rows g + 8), for tokens < num_tokens: row
// r of token i goes to row(i)[r] if first_row <= r < end_row; row may be null. Neighbouring lanes swap halves first, so
// that one store of the warp writes 64 contiguous bytes of 2 tokens, not 32 of 4.
template <int kN, typename Row>
__device__ __forceinline__ void StoreSums(const float (&acc)[kN / 2], const float (&scale)[2], int num_tokens,
                                          int first_row, int end_row, const Row& row) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
  const bool odd = t % 2 != 0;
  const int r = g + (odd ? 8 : 0);
  const bool inside = r >= first_row && r < end_row;
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    const float low[2] = {acc[4 * j] * scale[0], acc[4 * j + 1] * scale[0]};
    const float high[2] = {acc[4 * j + 2] * scale[1], acc[4 * j + 3] * scale[1]};
    const float other[2] = {__shfl_xor_sync(~0u, odd ? low[0] : high[0], 1),
                            __shfl_xor_sync(~0u, odd ? low[1] : high[1], 1)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // tokens 8 j + 4 (t / 2) + i: the even lane's two, then the odd lane's
      const int token = 8 * j + t / 2 * 4 + i;
      float* const to = row(j, token);
      const float v = i < 2 ? (odd ? other[i] : low[i]) : (odd ? high[i - 2] : other[i - 2]);
      StoreIf(inside && to != nullptr && token < num_tokens, to + r, v);
    }
  }
}

// The same for a tile that is wholly inside, in fewer instructions: token i's 16 rows of this warp go to y + i *
// stride.
template <int kN>
__device__ __forceinline__ void StoreAllSums(const float (&acc)[kN / 2], const float (&scale)[2], float* y,
                                             int stride) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
  const bool odd = t % 2 != 0;
  float* const to = y + g + (odd ? 8 : 0) + static_cast<int64_t>(t / 2 * 4) * stride;
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    const float low[2] = {acc[4 * j] * scale[0], acc[4 * j + 1] * scale[0]};
    const float high[2] = {acc[4 * j + 2] * scale[1], acc[4 * j + 3] * scale[1]};
    const float other[2] = {__shfl_xor_sync(~0u, odd ? low[0] : high[0], 1),
                            __shfl_xor_sync(~0u, odd ? low[1] : high[1], 1)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float v = i < 2 ? (odd ? other[i] : low[i]) : (odd ? high[i - 2] : other[i - 2]);
      asm volatile("st.global.f32 [%0], %1;" ::"l"(to + static_cast<int64_t>(8 * j + i) * stride), "f"(v) : "memory");
    }
  }
}

// The rounding error of an activation, its second term. 0 for infinities, NaNs and values outside BF16's range.
template <bool kHalf>
__device__ __forceinline__ float InputRest(float x) {
  if constexpr (kHalf) return fabsf(x) <= 65504.0f ? x - __half2float(__float2half_rn(x)) : 0.0f;
  return fabsf(x) < 0x1p127f ? x - __bfloat162float(__float2bfloat16_rn(x)) : 0.0f;
}

// 16 activations of a row in the form of a block: two chunks of 16 bytes. A step's two chunks are 32 bytes of memory.
// One store writes them if neighbouring lanes have swapped: even lanes have the first chunks of their own step and the
// next, odd lanes the second chunks of the previous step and their own. A half of 32 bytes would cost as much as all
// 32.
struct PackedBlockValues {
  uint4 v[2];
  __device__ __forceinline__ void Store(uint8_t* block, int r) const {
    const int s = static_cast<int>(threadIdx.x % 4), first = s % 2 == 0 ? 2 * s : 2 * s - 1;
    uint4* row = reinterpret_cast<uint4*>(block + r * 128);
    row[first ^ r] = v[0];
    row[(first + 2) ^ r] = v[1];
  }
};

// A lane's part of 8 rows x 64 columns of activations: row lane / 4, step lane % 4.
struct BlockValues {
  float4 v[4];

  // `x`: the lane's row at the block's first column (null: zeros); the row has `columns` of the block's columns.
  __device__ __forceinline__ void Load(const float* x, int columns, bool aligned) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const int c = 16 * t + static_cast<int>(threadIdx.x % 4) * 4;
      v[t] = make_float4(0, 0, 0, 0);
      if (x != nullptr && aligned && c + 4 <= columns) {
        v[t] = __ldg(reinterpret_cast<const float4*>(x + c));
      } else if (x != nullptr) {
        if (c < columns) v[t].x = __ldg(x + c);
        if (c + 1 < columns) v[t].y = __ldg(x + c + 1);
        if (c + 2 < columns) v[t].z = __ldg(x + c + 2);
        if (c + 3 < columns) v[t].w = __ldg(x + c + 3);
      }
    }
  }
  // Called by all lanes of a row.
  template <bool kHalf>
  __device__ __forceinline__ PackedBlockValues Packed() const {
    uint32_t low[4], high[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) low[t] = PackInputs<kHalf>(v[t].x, v[t].y), high[t] = PackInputs<kHalf>(v[t].z, v[t].w);
    const bool odd = threadIdx.x % 2 != 0;
    const uint32_t lanes = 3u << (threadIdx.x % 32 & ~1u);
    uint32_t first[4], second[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const uint32_t got = __shfl_xor_sync(lanes, odd ? low[t] : high[t], 1);
      first[t] = odd ? got : low[t];
      second[t] = odd ? high[t] : got;
    }
    return {
        {make_uint4(first[0], first[1], first[2], first[3]), make_uint4(second[0], second[1], second[2], second[3])}};
  }
  // Stores row r of `block`; called by all lanes of the row.
  template <bool kHalf>
  __device__ __forceinline__ void Store(uint8_t* block, int r) const {
    Packed<kHalf>().Store(block, r);
  }
  // Keeps only the rounding errors.
  template <bool kHalf>
  __device__ __forceinline__ void KeepRest() {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      v[t] = {InputRest<kHalf>(v[t].x), InputRest<kHalf>(v[t].y), InputRest<kHalf>(v[t].z), InputRest<kHalf>(v[t].w)};
    }
  }
};

// The warp's stores before this call are visible to bulk copies that another block starts after WaitForCount has seen
// the count.
__device__ __forceinline__ void SignalCount(int* count) {
  __threadfence();
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncwarp();
  if (threadIdx.x % 32 == 0) asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(count) : "memory");
}
__device__ __forceinline__ void WaitForCount(const int* count, int wanted) {
  for (uint32_t tries = 0;; ++tries) {
    int now;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(count) : "memory");
    if (now >= wanted) break;
    __nanosleep(100);
    if (tries > (1u << 22)) __trap();
  }
  asm volatile("fence.proxy.async;" ::: "memory");
}

}  // namespace dsv4::sm90
