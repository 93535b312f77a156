#include "ops/experts/experts_sm90.h"

#include <algorithm>

#include "device/launch.cuh"
#include "ops/experts/combine_ranks_sm90.cuh"
#include "ops/experts/experts_scratch.h"
#include "ops/experts/sorted_pairs_sm90.cuh"
#include "ops/gemm_sm90.cuh"

namespace dsv4 {

namespace {

using namespace sm90;  // NOLINT: this file is sm90

struct ExpertsParams {
  const ExpertMatrices* matrices;
  Sorted sorted;
  const uint8_t* tokens;    // activations in sorted order
  int row_blocks8;          // of all activation buffers
  int slabs, scale_stride;  // of K
  int row_tiles, row_steps;
  int group, first_class, last_class;  // of the kernel's tiles
  bool first;                          // kernel of its product
  // Up
  uint8_t* hidden;
  float limit;
  // Down
  float* outputs;
  int d;
};

// A NaN stays a NaN, unlike with fminf.
[[maybe_unused]] __device__ __forceinline__ float AtMost(float x, float limit) { return x > limit ? limit : x; }

// Computes h of 64 rows of gate and up. This thread has gate row 16 warp + 8 half + g, tokens 8 j + 2 t + {0, 1}.
template <WeightFormat kFormat, int kN, int kParts>
__device__ __forceinline__ void UpTile(const ExpertsParams& p, const GemmShared& s,
                                       Position<TokenStages(kN, kParts)>& at, const WarpRows& rows,
                                       const ExpertTile& tile, int step) {
  const ExpertMatrices& m = p.matrices[tile.expert];
  const int warp = static_cast<int>(threadIdx.x / 32 % 4), lane = static_cast<int>(threadIdx.x % 32), g = lane / 4,
            t = lane % 4;
  const int row_tile = step * 4 + warp;
  Fp8Scales scales;
  if (HasScalesBeside(kFormat) && row_tile < p.row_tiles) {
    scales.row[0] = reinterpret_cast<const float*>(m.gate.block_scale) +
                    static_cast<int64_t>(row_tile) * p.scale_stride;
    scales.row[1] = reinterpret_cast<const float*>(m.up.block_scale) + static_cast<int64_t>(row_tile) * p.scale_stride;
  }
  float weight[(kN + 31) / 32];  // of token 32 i + lane
#pragma unroll
  for (int i = 0; i < (kN + 31) / 32; ++i) {
    weight[i] = 32 * i + lane < (tile.count + 7) / 8 * 8 ? p.sorted.weight[tile.row0 + 32 * i + lane] : 0.0f;
  }
  float acc[kN / 2], unit[2];
  MultiplyTile<kFormat, kN, kParts, true>(s, at, rows, scales, p.slabs, acc, unit);
  const float gate_scale = m.gate.global_scale * FormatScale<kFormat>() * unit[0];
  const float up_scale = m.up.global_scale * FormatScale<kFormat>() * unit[1];
  const int column = 16 * warp + 8 * static_cast<int>(rows.half) + g;  // of the 64
  const bool inside = step * 64 + column < static_cast<int>(m.gate.rows);
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 8 * j + 2 * t + i;
      const float gate = AtMost(acc[4 * j + i] * gate_scale, p.limit);
      const float up = -AtMost(-AtMost(acc[4 * j + 2 + i] * up_scale, p.limit), p.limit);
      const float w = __shfl_sync(~0u, weight[j / 4], token % 32);
      acc[4 * j + i] = inside ? __fdividef(gate, 1.0f + __expf(-gate)) * up * w : 0.0f;
    }
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    if (threadIdx.x == 128) BulkWaitRead<0>();  // the previous contents have left the staging memory
    NamedBarrier(3, 256);
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint8_t* to = s.staging_memory + j * 1024 + ActivationByte(2 * t + i, column);
        *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(PackInputs<kHalf<kFormat>>(acc[4 * j + i], 0.0f));
        if (part + 1 < kParts) acc[4 * j + i] = InputRest<kHalf<kFormat>>(acc[4 * j + i]);
      }
    }
    FenceAsyncShared();
    NamedBarrier(3, 256);
    if (threadIdx.x == 128) {
      const int64_t block = (static_cast<int64_t>(step) * kParts + part) * p.row_blocks8 + tile.row0 / 8;
      BulkStore(p.hidden + block * 1024, s.staging, static_cast<uint32_t>((tile.count + 7) / 8 * 1024));
      BulkCommit();
    }
  }
}

template <WeightFormat kFormat, int kN, int kParts>
__device__ __forceinline__ void DownTile(const ExpertsParams& p, const GemmShared& s,
                                         Position<TokenStages(kN, kParts)>& at, const WarpRows& rows,
                                         const ExpertTile& tile, int step) {
  const QuantTensor& w = p.matrices[tile.expert].down;
  const int lane = static_cast<int>(threadIdx.x % 32),
            row_tile = step * kRowTiles + static_cast<int>(threadIdx.x / 32) - 4;
  Fp8Scales scales;
  if (HasScalesBeside(kFormat) && row_tile < p.row_tiles) {
    scales.row[0] = scales.row[1] = reinterpret_cast<const float*>(w.block_scale) +
                                    static_cast<int64_t>(row_tile) * p.scale_stride;
  }
  int pair[(kN + 31) / 32];  // of token 32 i + lane
#pragma unroll
  for (int i = 0; i < (kN + 31) / 32; ++i)
    pair[i] = 32 * i + lane < tile.count ? p.sorted.pair[tile.row0 + 32 * i + lane] : -1;
  float acc[kN / 2], unit[2];
  MultiplyTile<kFormat, kN, kParts, false>(s, at, rows, scales, p.slabs, acc, unit);
  const float scale = w.global_scale * FormatScale<kFormat>();
  const int row = row_tile * 16;
  StoreSums<kN>(acc, {unit[0] * scale, unit[1] * scale}, tile.count, 0, p.d - row, [&](int j, int token) -> float* {
    const int source = __shfl_sync(~0u, pair[j / 4], token % 32);
    return source < 0 ? nullptr : p.outputs + static_cast<int64_t>(source) * p.d + row;
  });
}

// Persistent over (tile of an expert's tokens, 64 rows of gate and up or 128 rows of down), for the tiles of one width.
// The kernels of a product are independent. Only the first one waits for the previous kernel, and lets the next kernel
// start after that. The others fill the multiprocessors that it leaves free, and wait at their end, so that kernels
// after them find all of them done.
template <WeightFormat kFormat, bool kUp, int kN, int kParts>
__global__ void __launch_bounds__(kGemmThreads, BlocksOfSm(kFormat, kN, kParts)) ExpertsKernel(const ExpertsParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t memory[];
  constexpr bool kTwoBlocks = BlocksOfSm(kFormat, kN, kParts) == 2;
  const GemmShared s = CarveShared<kFormat, kN, kParts>(memory);
  InitBarriers(s);
  if (p.first) WaitForPrevious();
  AllowNext();
  const ExpertTile* const tiles = p.sorted.tiles;
  const Totals& totals = p.sorted.totals[p.group];
  const int tiles_begin = p.first_class == 0 ? totals.begin : totals.class_end[p.first_class - 1];
  const int num_units = totals.class_end[p.last_class] * p.row_steps, stride = static_cast<int>(gridDim.x);
  const int first_unit = tiles_begin * p.row_steps + static_cast<int>(blockIdx.x);
  const int warpgroup = static_cast<int>(threadIdx.x / 128), warp = static_cast<int>(threadIdx.x / 32 % 4);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (warpgroup == 0) {
    FewerRegisters<kTwoBlocks ? 24 : 40>();
    if (warp > 1) return;
    if (warp == 0) {
      Ring<> ring;
      for (int unit = first_unit; unit < num_units; unit += stride) {
        const ExpertMatrices& m = p.matrices[tiles[unit / p.row_steps].expert];
        const int row_tile = kUp ? unit % p.row_steps * 4 + lane % 4 : unit % p.row_steps * kRowTiles + lane;
        const uint8_t* codes = kUp ? (lane < 4 ? m.gate.codes : m.up.codes) : m.down.codes;
        codes = row_tile < p.row_tiles ? codes + static_cast<int64_t>(row_tile) * p.slabs * TileBytes(kFormat)
                                       : nullptr;
        CopyWeights<kFormat>(s, ring, codes, p.slabs);
      }
      if (!p.first) WaitForPrevious();
    } else if (lane == 0) {
      Ring<TokenStages(kN, kParts)> ring;
      for (int unit = first_unit; unit < num_units; unit += stride) {
        const ExpertTile tile = tiles[unit / p.row_steps];
        CopyTokens<kParts, TokenStageBytes(kN, kParts)>(s, ring, p.tokens + static_cast<int64_t>(tile.row0) * 128,
                                                        static_cast<uint32_t>((tile.count + 7) / 8 * 1024),
                                                        int64_t{1024} * p.row_blocks8, p.slabs);
      }
    }
  } else {
    MoreRegisters<kTwoBlocks ? 104 : 232>();
    constexpr uint32_t kTile = ChunkTileBytes(kFormat);
    const uint32_t w = static_cast<uint32_t>(warp), half = static_cast<uint32_t>(warpgroup - 1);
    const uint32_t l = 16 * static_cast<uint32_t>(lane);
    const WarpRows rows = kUp ? WarpRows{w * kTile + l, (4 + w) * kTile + l, half}
                              : WarpRows{(4 * half + w) * kTile + l, (4 * half + w) * kTile + l, 0};
    Position<TokenStages(kN, kParts)> at;
    for (int unit = first_unit; unit < num_units; unit += stride) {
      const ExpertTile tile = tiles[unit / p.row_steps];
      if constexpr (kUp) {
        UpTile<kFormat, kN, kParts>(p, s, at, rows, tile, unit % p.row_steps);
      } else {
        DownTile<kFormat, kN, kParts>(p, s, at, rows, tile, unit % p.row_steps);
      }
      if (kUp && unit + stride >= num_units) BulkWait();
    }
    // No code here: see gemm_sm90.cuh about registers.
  }
#endif
}

// y[t] = shared[t] + the outputs of its choices in order.
__global__ void __launch_bounds__(256)
    CombineKernel(const float* outputs, const float* shared, float* y, int picked, int d, bool aligned) {
  AllowNext();
  WaitForPrevious();
  const int64_t t = blockIdx.x;
  const float* rows = outputs + t * picked * d;
  if (aligned) {
    for (int c = static_cast<int>(threadIdx.x) * 4; c < d; c += 1024) {
      float4 sum = *reinterpret_cast<const float4*>(shared + t * d + c);
      for (int a = 0; a < picked; ++a) {
        const float4 v = __ldcs(reinterpret_cast<const float4*>(rows + static_cast<int64_t>(a) * d + c));
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
      }
      *reinterpret_cast<float4*>(y + t * d + c) = sum;
    }
  } else {
    for (int c = static_cast<int>(threadIdx.x); c < d; c += 256) {
      float sum = shared[t * d + c];
      for (int a = 0; a < picked; ++a) sum += rows[static_cast<int64_t>(a) * d + c];
      y[t * d + c] = sum;
    }
  }
}

template <WeightFormat kFormat, bool kUp, int kParts, int kFirst, int kLast>
void LaunchClasses(const ExecContext& ctx, ExpertsParams p) {
  p.first_class = kFirst;
  p.last_class = kLast;
  p.first = kFirst == (kParts == 1 ? 0 : 3);
  constexpr int kN = Width(kFirst);
  Launch(ctx, ExpertsKernel<kFormat, kUp, kN, kParts>,
         dim3(static_cast<unsigned>(BlocksOfSm(kFormat, kN, kParts) * ctx.gpu.multiprocessors)), dim3(kGemmThreads),
         static_cast<size_t>(GemmSharedBytes(kFormat, kN, kParts)), p);
}

template <WeightFormat kFormat, bool kUp>
void LaunchFormat(const ExecContext& ctx, const ExpertsParams& p, int parts) {
  if (parts == 2) {  // no wider tiles: see CopyTokens
    LaunchClasses<kFormat, kUp, 2, 3, 3>(ctx, p);
    LaunchClasses<kFormat, kUp, 2, 4, 4>(ctx, p);
    LaunchClasses<kFormat, kUp, 2, 5, 5>(ctx, p);
  } else if constexpr (!NeedsTwoParts(kFormat)) {
    LaunchClasses<kFormat, kUp, 1, 0, 0>(ctx, p);
    LaunchClasses<kFormat, kUp, 1, 1, 1>(ctx, p);
    LaunchClasses<kFormat, kUp, 1, 2, 2>(ctx, p);
    LaunchClasses<kFormat, kUp, 1, 3, 3>(ctx, p);
    LaunchClasses<kFormat, kUp, 1, 4, 4>(ctx, p);
    LaunchClasses<kFormat, kUp, 1, 5, 5>(ctx, p);
  }
}

template <bool kUp>
void LaunchProduct(const ExecContext& ctx, const ExpertsArgs& a, ExpertsParams p, int parts) {
  const WeightFormat format = kUp ? a.first.gate.format : a.first.down.format;
  const auto launch = [&] { WithExpertFormat(format, [&]<WeightFormat F>() { LaunchFormat<F, kUp>(ctx, p, parts); }); };
  if (a.fetched == nullptr) return launch();
  for (p.group = 0; p.group < a.fetched->num_groups; ++p.group) {
    a.fetched->fetch->Await(kUp, p.group);
    launch();
    a.fetched->fetch->Done();
  }
}

bool Aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// Writes the tokens as FP16 blocks of the experts' sorted rows.
void SpreadTokens(const ExecContext& ctx, const ExpertsArgs& a, const Sorted& sorted, int parts, int row_blocks8,
                  uint8_t* x) {
  const int64_t tokens = a.x.dim(0), d = a.x.dim(1), d_slabs = CeilDiv(d, kTileCols64);
  const int picked = static_cast<int>(a.experts.dim(1));
  if (a.x_blocks != nullptr && IsHalf(a.first.gate.format) && parts == 1) {
    DSV4_CHECK(d % 64 == 0);
    const int64_t warps = CeilDiv(tokens, 8) * CeilDiv(d_slabs, kSpreadSlabs);
    Launch(ctx, SpreadBlocksKernel, dim3(static_cast<unsigned>(CeilDiv(warps, 8))), dim3(256), 0, a.x_blocks, sorted, x,
           static_cast<int>(tokens), picked, static_cast<int>(d_slabs), row_blocks8);
    return;
  }
  DSV4_CHECK(a.x.data != nullptr, "x is there as blocks only");
  const dim3 grid(
      static_cast<unsigned>(std::min<int64_t>(CeilDiv(CeilDiv(tokens, 8) * d_slabs, 8), ctx.gpu.multiprocessors * 16)));
  Launch(ctx, IsHalf(a.first.gate.format) ? SpreadKernel<true> : SpreadKernel<false>, grid, dim3(256), 0, a.x.f32(),
         sorted, x, static_cast<int>(tokens), picked, static_cast<int>(d), static_cast<int>(d_slabs), parts,
         row_blocks8, d % 4 == 0 && Aligned16(a.x.data));
}

// Sorts the pairs of a token and an expert by expert; an expert's rows begin at a tile.
void SortPairs(const ExecContext& ctx, const ExpertsArgs& a, const Sorted& sorted, int parts) {
  const auto* experts = a.experts.i32();
  const int num_pairs = static_cast<int>(a.x.dim(0) * a.experts.dim(1)), e = static_cast<int>(a.matrices.size());
  const auto blocks = static_cast<unsigned>(CeilDiv(num_pairs, kSortThreads));
  const dim3 block(kSortThreads);
  Launch(ctx, CountKernel, dim3(blocks), block, 0, experts, sorted, num_pairs, e);
  const int num_groups = a.fetched == nullptr ? 1 : a.fetched->num_groups;
  DSV4_CHECK(num_groups >= 1 && num_groups <= kMaxFetchGroups, num_groups, " groups");
  Launch(ctx, PlaceKernel, dim3(1), block, 0, sorted, static_cast<int>(blocks), e, kMaxTokens / parts,
         a.fetched == nullptr ? nullptr : a.fetched->group_of, num_groups);
  Launch(ctx, ScatterKernel, dim3(blocks), block, static_cast<size_t>(32 * e), experts, a.weights.f32(), sorted,
         num_pairs, e);
}

// Multiplies the sorted rows with the experts' matrices: gate and up, then down.
void MultiplySorted(const ExecContext& ctx, const ExpertsArgs& a, ExpertsParams p, int parts, const uint8_t* x,
                    const uint8_t* hidden) {
  const int64_t d = a.x.dim(1), f = a.first.gate.rows;
  p.tokens = x;
  p.slabs = static_cast<int>(CeilDiv(d, kTileCols64));
  p.scale_stride = static_cast<int>(CeilDiv(d, kFp8BlockSize));
  p.row_tiles = static_cast<int>(CeilDiv(f, kTileRows16));
  p.row_steps = static_cast<int>(CeilDiv(f, 64));
  LaunchProduct<true>(ctx, a, p, parts);

  p.tokens = hidden;
  p.slabs = static_cast<int>(CeilDiv(f, kTileCols64));
  p.scale_stride = static_cast<int>(CeilDiv(f, kFp8BlockSize));
  p.row_tiles = static_cast<int>(CeilDiv(d, kTileRows16));
  p.row_steps = static_cast<int>(CeilDiv(p.row_tiles, kRowTiles));
  LaunchProduct<false>(ctx, a, p, parts);
}

}  // namespace

void ExpertsPrefillSm90(const ExecContext& ctx, const ExpertsArgs& a) {
  const int parts = GpuExpertsInputNumbers(ctx, a.first);
  const int64_t tokens = a.x.dim(0), d = a.x.dim(1), picked = a.experts.dim(1), pairs = tokens * picked;
  const auto num_experts = static_cast<int64_t>(a.matrices.size());
  if (pairs == 0 || d == 0) return;
  static_assert(kSortThreads >= kMaxExpertsOnGpu && kSortThreads == experts::kSortedPairs &&
                kMaxTokens == experts::kWidestTile);
  static_assert(sizeof(Totals) == experts::kTotalsBytes && sizeof(ExpertTile) == experts::kTileEntryBytes);
  DSV4_CHECK(pairs < int64_t{1} << 30 && num_experts <= kSortThreads);
  for (const QuantTensor* w : {&a.first.gate, &a.first.up, &a.first.down})
    DSV4_CHECK(w->layout == WeightLayout::kTiles);
  const experts::SortedScratch places = experts::SortedScratchOf(ctx, ShapeOf(a), tokens);
  DSV4_CHECK(places.bytes <= ctx.scratch.bytes && Aligned16(a.outputs.data) && Aligned16(a.hidden.data));
  uint8_t* const scratch = ctx.scratch.data;
  const Sorted sorted = {.histogram = reinterpret_cast<int*>(scratch + places.histogram),
                         .totals = reinterpret_cast<Totals*>(scratch + places.totals),
                         .tiles = reinterpret_cast<ExpertTile*>(scratch + places.tiles),
                         .pair = reinterpret_cast<int*>(scratch + places.pair),
                         .row = reinterpret_cast<int*>(scratch + places.row),
                         .weight = reinterpret_cast<float*>(scratch + places.weight)};
  uint8_t* const x = places.x < 0 ? static_cast<uint8_t*>(a.outputs.data) : scratch + places.x;
  uint8_t* const hidden = places.hidden < 0 ? static_cast<uint8_t*>(a.hidden.data) : scratch + places.hidden;
  const int row_blocks8 = static_cast<int>(places.most_rows / 8);

  SortPairs(ctx, a, sorted, parts);
  SpreadTokens(ctx, a, sorted, parts, row_blocks8, x);
  ExpertsParams p = {};
  p.matrices = a.fetched == nullptr ? a.matrices.data() : a.fetched->matrices.data();
  p.sorted = sorted;
  p.row_blocks8 = row_blocks8;
  p.hidden = hidden;
  p.limit = a.limit;
  p.outputs = a.outputs.f32();
  p.d = static_cast<int>(d);
  MultiplySorted(ctx, a, p, parts, x, hidden);

  if (a.sums_ranks) {
    const int count = ctx.ranks->count;
    return count == 2 ? CombineRanks<2>(ctx, a) : count == 4 ? CombineRanks<4>(ctx, a) : CombineRanks<8>(ctx, a);
  }
  Launch(ctx, CombineKernel, dim3(static_cast<unsigned>(tokens)), dim3(256), 0, a.outputs.f32(), a.shared.f32(),
         a.y.f32(), static_cast<int>(picked), static_cast<int>(d),
         d % 4 == 0 && Aligned16(a.outputs.data) && Aligned16(a.shared.data) && Aligned16(a.y.data));
}

}  // namespace dsv4
