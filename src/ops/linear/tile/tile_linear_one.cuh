// One token (the linears of a decode step of one sequence) or up to four (a step that verifies drafts). This is the
// kernel of tile_linear_kernel.cuh with as little code around the products as possible, because issue slots and code
// fetches limit the step. A block has weights of one format. Tiles, warps and the order of sums are the same, so a row
// has the same bits as among other tokens.
#pragma once

#include "device/exchange.cuh"
#include "ops/linear/tile/tile_linear_kernel.cuh"
#include "ops/linear/tile/warp_chunks.cuh"

namespace dsv4::tile_linear {

// Whether OneTokenKernel can run the launch with capacity for `tokens` tokens and rings of `slots` slots. Each block
// has its own range, of whole row tiles.
inline bool OneTokenTakes(const Params& p, int tokens, int slots = kSlots) {
  return OneTokenLoads(p) && OneTokenFits(BlockShapeOf(p), tokens, slots) &&
         (p.groups == 1 || (p.rows_per_group % 16 == 0 && p.groups <= p.num_clusters));
}

// The additional arguments of a launch that pushes.
struct NoPush {
  static constexpr bool kPushes = false;
};
struct Push {
  static constexpr bool kPushes = true;
  RankPush to;
  // Holds the step's tag until the end of the products, so that it needs no register.
  __device__ __forceinline__ static uint32_t& Tag() {
    __shared__ uint32_t tag;
    return tag;
  }
};

// TreeSum of 2^log_parts numbers, `step` apart.
__device__ __forceinline__ float SumOfParts(const float* from, int step, int log_parts) {
  float sum = from[0];
  if (log_parts >= 1) sum += from[step];
  if (log_parts >= 2) sum += from[2 * step] + from[3 * step];
  if (log_parts >= 3) sum += (from[4 * step] + from[5 * step]) + (from[6 * step] + from[7 * step]);
  return sum;
}

// A block whose range has weights of format F, in a launch of format L.
// kDirect: a warp sums whole rows and stores y; else each warp of an item has a segment of K.
// kWhole: all segments are whole chunks. kTokens: capacity, at least the number of tokens. kRing: slots of a ring.
template <WeightFormat F, WeightFormat L, bool kDirect, bool kWhole, int kTokens, int kRing, typename P>
__device__ __forceinline__ void MultiplyRange(const Params& p, const P& push, uint8_t* shared, uint64_t* barriers,
                                              float* row_scale) {
  constexpr int kFull = TilesOfChunk(F);  // tiles of a chunk
  constexpr bool kFp8 = HasScalesBeside(F);
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
  const uint32_t lane = threadIdx.x % 32;
  const int log_parts = kDirect ? 0 : p.log_segments, part = warp & ((1 << log_parts) - 1), step = kWarps >> log_parts;
  const int first_tile = p.tile_cols * part >> log_parts, count = (p.tile_cols * (part + 1) >> log_parts) - first_tile;
  const Range range = RangeAt<L>(p, static_cast<int>(blockIdx.x));
  // Through a shuffle, so that loops do not compute it again.
  const uint32_t base = __shfl_sync(0xFFFFFFFFu, SharedAddress(shared), 0);
  const uint32_t full = __shfl_sync(0xFFFFFFFFu, SharedAddress(barriers), 0);
  WarpChunks<F, kTokens, kFull, kWhole, kRing, kSlotBytes> chunks(base, full, warp);
  int item = range.begin + (warp >> log_parts);
  ChunkStream<F, kWhole> stream;
  stream.Start(p, range, {warp >> log_parts, step, first_tile, count});
  const auto ask = [&](uint32_t slot, uint32_t barrier) { stream.Request(p, range, slot, barrier); };
  chunks.Fill(ask);
  if (p.norm != nullptr && static_cast<int>(threadIdx.x) < (p.cols + 31) / 32) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p.norm + 32 * threadIdx.x));
  }
  ItemScales scales = {}, next_scales = {};  // FP8
  const auto load_scales = [&](int of) {
    if (!kFp8 || of >= range.end) return;
    const int m = MatrixOf(p, of);
    next_scales = ItemScales::Load(p, m, RowTile(p, m, range.group, of), first_tile, static_cast<int>(lane));
  };
  load_scales(item);
  // A warp's first chunk is decoded before x is available.
  OneTokenTiles<F, kTokens> tiles(lane);
  constexpr int kXTile = OneTokenTiles<F, kTokens>::kTile;
  uint32_t early[kFull][4][4];
  chunks.Begin(item < range.end ? count : 0);
  if (chunks.left() > 0) chunks.DecodeFirst(tiles, early, ask);
  uint8_t* const inputs = shared + kWarps * kRing * kSlotBytes;
  // Segments' sums, [segment][token][row]; a thread adds the sums of its row.
  float* const partials = reinterpret_cast<float*>(inputs + p.tile_cols * kXTile);
  const int stride = Exchange::Stride(range.end - range.begin);
  float* y = nullptr;
  float y_factor = 0;
  [[maybe_unused]] int y_rows = 0;
  if constexpr (!kDirect) {
    const int mine = range.begin + static_cast<int>(threadIdx.x) / 16;
    if (mine < range.end) {
      const int m = MatrixOf(p, mine), row = RowTile(p, m, range.group, mine) * 16 + static_cast<int>(threadIdx.x) % 16;
      if (row < p.matrices[m].rows) y = p.matrices[m].y + row;
      y_factor = p.matrices[m].factor;
      y_rows = p.matrices[m].rows;
    }
  }
  WaitForPrevious();

  [[maybe_unused]] uint32_t tag = 0;
  if constexpr (P::kPushes) {
    if (threadIdx.x == 0) tag = ExchangeTag(push.to.memory, push.to.site);
  }
  StageTokens<kTokens>(p, range.group, inputs);
  if constexpr (P::kPushes) {
    if (threadIdx.x == 0) P::Tag() = tag;
  }
  if (p.norm != nullptr) ScalesOfTokens<kTokens>(p, warp, row_scale);
  __syncthreads();

  const int token = min(static_cast<int>(lane % 4), kTokens - 1);  // of the lane's sums
  const bool stores = kTokens == 1 ? lane % 4 == 0 : static_cast<int>(lane % 4) < p.num_tokens;
  const uint32_t x_begin = base + kWarps * kRing * kSlotBytes + first_tile * kXTile;
  float* to = nullptr;
  if constexpr (!kDirect) to = partials + (part * kTokens + token) * stride + (item - range.begin) * 16 + lane / 4;
  int row = 0, rows = 0, known_end = 0;  // kDirect: of the matrix of the items below known_end
  float factor = 1;
  const auto scale_of = [&](int i) {
    return kFp8 ? scales.Of((first_tile % 2 + count - chunks.left() + i) / 2) : 0.0f;
  };
  scales = next_scales;
  load_scales(item + step);
  if (chunks.left() > 0) chunks.MultiplyFirst(tiles, early, x_begin, scale_of);
  while (item < range.end) {
    chunks.MultiplyRest(tiles, scale_of, ask);
    const float2 sum = tiles.Take();  // rows g, g + 8
    if constexpr (!kDirect) {
      if (stores) to[0] = sum.x, to[8] = sum.y;
      to += 16 * step;
    } else {
      if (item >= known_end) {
        const int m = MatrixOf(p, item);
        to = p.matrices[m].y, rows = p.matrices[m].rows, factor = p.matrices[m].factor;
        if constexpr (kTokens > 1) to += static_cast<int64_t>(token) * rows;
        if (p.norm != nullptr) factor *= row_scale[token];
        row = (item - p.matrices[m].first_item) * 16 + static_cast<int>(lane / 4);
        known_end = m + 1 < p.num_matrices ? p.matrices[m + 1].first_item : p.items;
      }
      if (stores && row < rows) to[row] = sum.x * factor;
      if (stores && row + 8 < rows) to[row + 8] = sum.y * factor;
      row += 16 * step;
    }
    item += step;
    scales = next_scales;
    load_scales(item + step);
    chunks.Begin(count, x_begin);
  }
  if constexpr (!kDirect) {
    __syncthreads();
    if (y == nullptr) return;
    const float* from = partials + threadIdx.x;
    const auto tree_sum = [&](int step) { return SumOfParts(from, step, log_parts); };
    if constexpr (P::kPushes && kTokens == 1) {
      const float part = tree_sum(stride) * y_factor;
      PushWord(push.to, P::Tag(), y - p.matrices[0].y, part);
      *y = part;
    } else if constexpr (P::kPushes) {
      for (int i = 0; i < p.num_tokens; ++i, from += stride, y += y_rows) {
        const float part = tree_sum(kTokens * stride) * y_factor;
        PushWord(push.to, P::Tag(), y - p.matrices[0].y, part);
        *y = part;
      }
    } else if constexpr (kTokens == 1) {
      if (p.norm != nullptr) y_factor *= row_scale[0];
      *y = tree_sum(stride) * y_factor;
    } else {
      for (int i = 0; i < p.num_tokens; ++i, from += stride, y += y_rows)
        *y = tree_sum(kTokens * stride) * (p.norm != nullptr ? y_factor * row_scale[i] : y_factor);
    }
  }
}

// kMixed: each matrix has its own format, and each block has one of the formats.
template <WeightFormat F, bool kDirect, bool kWhole, int kTokens, int kRing, typename P>
__global__ void __launch_bounds__(kThreads, 1)
    OneTokenKernel(const __grid_constant__ Params p, const __grid_constant__ P push) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kWarps * kRing];
  __shared__ float row_scales[kTokens];
  static_assert(sizeof barriers + sizeof row_scales <= kOwnShared);
  AllowNext();
  const WeightFormat format = F == kMixed ? p.matrices[MatrixOf(p, p.ranges[blockIdx.x].begin)].format : F;
  CallWithFormat<F>(format, [&]<WeightFormat G>() {
    MultiplyRange<G, F, kDirect, kWhole, kTokens, kRing>(p, push, shared, barriers, row_scales);
  });
}

template <WeightFormat F, bool kDirect, bool kWhole, int kTokens, int kRing = kSlots, typename P = NoPush>
void LaunchOneToken(const ExecContext& ctx, const Params& p, const P& push = {}) {
  Launch(ctx, OneTokenKernel<F, kDirect, kWhole, kTokens, kRing, P>, dim3(static_cast<unsigned>(p.num_clusters)),
         dim3(kThreads), std::max(SharedBytes(p, kTokens, kPair, kRing), kOneBlock), p, push);
}

// For up to kTokens tokens.
template <WeightFormat F, int kTokens>
void LaunchFewTokens(const ExecContext& ctx, const Params& p) {
  const bool whole = p.tile_cols % (TilesOfChunk(F) << p.log_segments) == 0;
  if (!OneTokenTakes(p, kTokens) || (F == kMixed && !RangesHaveOneFormat(p))) {
    if constexpr (F != kMixed && kTokens == kFewTokens) {  // x takes much memory: a smaller ring
      constexpr int kSmall = kSlots - 1;
      if (p.log_segments > 0 && OneTokenTakes(p, kTokens, kSmall)) {
        return whole ? LaunchOneToken<F, false, true, kTokens, kSmall>(ctx, p)
                     : LaunchOneToken<F, false, false, kTokens, kSmall>(ctx, p);
      }
    }
    return LaunchTileLinear<F, 1, kPair>(ctx, p);
  }
  if constexpr (F != kMixed) {
    if (p.log_segments == 0)
      return whole ? LaunchOneToken<F, true, true, kTokens>(ctx, p) : LaunchOneToken<F, true, false, kTokens>(ctx, p);
  }
  whole ? LaunchOneToken<F, false, true, kTokens>(ctx, p) : LaunchOneToken<F, false, false, kTokens>(ctx, p);
}

template <WeightFormat F>
void LaunchPushing(const ExecContext& ctx, const Params& p, int64_t site) {
  DSV4_CHECK(p.num_tokens <= kFewTokens && p.num_matrices == 1 && p.groups == 1 && p.log_segments == 3 &&
             p.norm == nullptr && OneTokenTakes(p, p.num_tokens <= 2 ? p.num_tokens : kFewTokens));
  const Push push{PushOf(*ctx.ranks, site)};
  if (p.num_tokens == 1) return LaunchOneToken<F, false, true, 1, kSlots, Push>(ctx, p, push);
  if (p.num_tokens == 2) return LaunchOneToken<F, false, true, 2, kSlots, Push>(ctx, p, push);
  LaunchOneToken<F, false, true, kFewTokens, kSlots, Push>(ctx, p, push);
}

template <WeightFormat F>
void LaunchFormat(const ExecContext& ctx, const Params& p) {
  if (p.num_tokens == 1) return LaunchFewTokens<F, 1>(ctx, p);
  if (p.num_tokens == 2) return LaunchFewTokens<F, 2>(ctx, p);
  if (p.num_tokens <= kFewTokens) return LaunchFewTokens<F, kFewTokens>(ctx, p);
  if (p.num_tokens <= 8) return LaunchTileLinear<F, 2, kPair>(ctx, p);
  if (p.num_tokens <= 16) return LaunchTileLinear<F, 4, kPair>(ctx, p);
  LaunchTileLinear<F, 8, kPair>(ctx, p);
}

}  // namespace dsv4::tile_linear
