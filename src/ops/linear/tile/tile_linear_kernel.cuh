// The kernel of tile_linear_cuda.cu and its launches. tile_linear_one.cuh has the kernel for one token and the choice
// between them; the translation unit of each format includes it.
#pragma once

#include <algorithm>
#include <type_traits>

#include "device/cluster.cuh"
#include "device/launch.cuh"
#include "ops/linear/tile/tile_linear.cuh"

namespace dsv4::tile_linear {

// Writes y of four rows of an item's tile, from row `first` of the tile.
__device__ __forceinline__ void WriteRows(const Params& p, const Range& range, const float* scales, int item, int first,
                                          int token, float4 sum) {
  const int m = MatrixOf(p, item);
  const Matrix& a = p.matrices[m];
  const int n = RowTile(p, m, range.group, item) * 16 + first, begin = range.group * p.rows_per_group;
  const int end = p.groups == 1 ? a.rows : begin + p.rows_per_group;
  float* y = a.y + static_cast<int64_t>(token) * a.rows + n;
  const float factor = p.norm != nullptr ? a.factor * scales[token] : a.factor;
  const float v[4] = {sum.x * factor, sum.y * factor, sum.z * factor, sum.w * factor};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (n + i >= begin && n + i < end) y[i] = v[i];
  }
}

// Adds all warps' partial sums of a range, which are in shared memory, and writes y.
__device__ __forceinline__ void Reduce(const Params& p, const Range& range, const float* scales, const Exchange& e,
                                       int rank, uint32_t parity) {
  const int slices = 1 << p.log_slices, parts = 1 << p.log_parts, items = range.end - range.begin;
  const int quads = 4 * items, stride = Exchange::Stride(items) / 4, part_stride = p.num_tokens * stride;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const float4* partials = reinterpret_cast<const float4*>(e.partials);
  if (slices == 1) {
    // One token: the warps share its rows.
    const int first = p.num_tokens == 1 ? static_cast<int>(threadIdx.x) : lane,
              step = p.num_tokens == 1 ? kThreads : 32;
    for (int token = p.num_tokens == 1 ? 0 : warp; token < p.num_tokens; token += kWarps) {
      for (int quad = first; quad < quads; quad += step) {
        WriteRows(p, range, scales, range.begin + quad / 4, quad % 4 * 4, token,
                  TreeSum(partials + token * stride + quad, part_stride, parts));
      }
    }
    return;
  }
  const int owned = Exchange::Quads(items, slices);
  for (int token = warp; token < p.num_tokens; token += kWarps) {
    for (int quad = lane; quad < quads; quad += 32) {
      const float4 sum = TreeSum(partials + token * stride + quad, part_stride, parts);
      const uint32_t owner = static_cast<uint32_t>(quad & (slices - 1));
      const float4* to = e.received + (token * owned + (quad >> p.log_slices)) * slices + rank;
      gpu::StoreToCluster(gpu::ClusterAddress(SharedAddress(to), owner), sum, gpu::ClusterAddress(e.barrier, owner));
    }
  }
  BarrierWaitCluster(e.barrier, parity);
  for (int token = warp; token < p.num_tokens; token += kWarps) {
    for (int i = lane; i * slices + rank < quads; i += 32) {
      const int quad = i * slices + rank;
      WriteRows(p, range, scales, range.begin + quad / 4, quad % 4 * 4, token,
                TreeSum(e.received + (token * owned + i) * slices, 1, slices));
    }
  }
}

// Resets a warp's ring.
__device__ __forceinline__ void ResetBarriers(uint32_t full) {
  if (ElectLane()) {
    for (int s = 0; s < kSlots; ++s) {
      asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(full + 8 * s) : "memory");
      BarrierInit(full + 8 * s, 1);
    }
    BarrierInitFence();
  }
  __syncwarp();
}

// Adds the sums of even and odd tiles, then the terms of each token.
template <int NT, int NX>
__device__ __forceinline__ void JoinSums(float (&acc)[2][NT][4], float (&sum)[Inputs<NT, NX>::kTokenTiles][4]) {
#pragma unroll
  for (int n = 0; n < NT; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) acc[0][n][j] += acc[1][n][j];
  }
  Inputs<NT, NX>::Join(acc[0], sum);
}

template <int NT>
__device__ __forceinline__ void ClearSums(float (&acc)[2][NT][4]) {
#pragma unroll
  for (int n = 0; n < NT; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) acc[0][n][j] = acc[1][n][j] = 0;
  }
}

template <WeightFormat F, int NT, int NX>
__global__ void __launch_bounds__(kThreads, 1) TileLinearKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kWarps * kSlots + 1];
  __shared__ float row_scales[32];  // scales of the tokens' rows; with a norm they multiply the sums
  static_assert(sizeof barriers + sizeof row_scales <= kOwnShared);
  AllowNext();
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0),
            lane = static_cast<int>(threadIdx.x) % 32;
  const int slices = 1 << p.log_slices, parts = 1 << p.log_parts;
  const int rank = static_cast<int>(blockIdx.x) & (slices - 1), cluster = static_cast<int>(blockIdx.x) >> p.log_slices;
  const int part = warp & (parts - 1), segment = rank * parts + part;
  const int first_tile = p.tile_cols * rank >> p.log_slices, end_tile = p.tile_cols * (rank + 1) >> p.log_slices;
  Share share;
  share.offset = warp >> p.log_parts;
  share.step = kWarps >> p.log_parts;
  share.first = p.tile_cols * segment >> p.log_segments;
  share.count = (p.tile_cols * (segment + 1) >> p.log_segments) - share.first;
  // Through a shuffle, so that loops do not compute it again.
  const uint32_t ring = __shfl_sync(0xFFFFFFFFu, SharedAddress(shared), 0) + warp * (p.slots * kSlotBytes),
                 slots_end = ring + p.slots * kSlotBytes;
  const uint32_t full = __shfl_sync(0xFFFFFFFFu, SharedAddress(barriers), 0) + warp * (kSlots * 8);

  Range range = RangeAt<F>(p, cluster);
  std::conditional_t<F == kMixed, MixedStream, ChunkStream<F, false>> stream;
  const auto start = [&] {
    stream.Start(p, range, share);
#pragma unroll 1
    for (int s = 0; s < p.slots; ++s) stream.Request(p, range, ring + s * kSlotBytes, full + 8 * s);
  };
  if (ElectLane()) {
#pragma unroll
    for (int s = 0; s < kSlots; ++s) BarrierInit(full + 8 * s, 1);
    if (warp == 0) BarrierInit(SharedAddress(barriers + kWarps * kSlots), 1);
    BarrierInitFence();
  }
  __syncwarp();
  start();
  if (slices > 1) ClusterArriveRelaxed();
  ItemScales next_scales = {};
  const auto load_scales = [&](int item) {
    if (item >= range.end) return;
    const int m = MatrixOf(p, item);
    if (F == kMixed && !HasScalesBeside(p.matrices[m].format)) return;
    next_scales = ItemScales::Load(p, m, RowTile(p, m, range.group, item), share.first, lane);
  };
  if constexpr (HasScalesBeside(F) || F == kMixed) load_scales(range.begin + share.offset);
  if (p.norm != nullptr && static_cast<int>(threadIdx.x) < (p.cols + 31) / 32) {
    // not waited for: there may be no later time for it
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p.norm + 32 * threadIdx.x));
  }
  WaitForPrevious();

  uint8_t* const inputs = shared + kWarps * p.slots * kSlotBytes;
  const Inputs<NT, NX> tokens(p.num_tokens, lane);
  const uint8_t* const warp_inputs = inputs + (share.first - first_tile) * tokens.tile();
  Exchange exchange;
  exchange.partials = reinterpret_cast<float*>(inputs + ((p.tile_cols + slices - 1) >> p.log_slices) * tokens.tile());
  exchange.barrier = SharedAddress(barriers + kWarps * kSlots);
  const bool direct = p.log_segments == 0;
  const int num_ranges = p.groups == 1 ? p.num_clusters : p.groups * p.splits;
  uint32_t parity = 0, phase = 0, slot = ring, barrier = full;
  uint4 b[2][2] = {};
  for (int i = cluster; i < num_ranges; i += p.num_clusters) {
    if (i != cluster) {  // only groups that outnumber the clusters
      __syncthreads();
      range = RangeAt<F>(p, i);
      slot = ring, barrier = full, phase = 0;
      ResetBarriers(full);
      start();
      if constexpr (HasScalesBeside(F) || F == kMixed) load_scales(range.begin + share.offset);
    }
    const int items = range.end - range.begin, stride = Exchange::Stride(items);
    StageInputs<NX>(p, range.group, first_tile * 64, end_tile - first_tile, inputs);
    if (p.norm != nullptr && i == cluster) RowScales(p, row_scales);
    if (slices > 1 && threadIdx.x == 0) {
      BarrierExpect(
          exchange.barrier,
          static_cast<uint32_t>(p.num_tokens * ((4 * items - rank + slices - 1) >> p.log_slices) * slices) * 16);
    }
    __syncthreads();
    int m = MatrixOf(p, range.begin);
    for (int item = range.begin + share.offset; item < range.end; item += share.step) {
      float acc[2][NT][4];
      ClearSums(acc);
      const ItemScales scales = next_scales;
      if constexpr (HasScalesBeside(F) || F == kMixed) load_scales(item + share.step);
      while (m + 1 < p.num_matrices && item >= p.matrices[m + 1].first_item) ++m;
      const Matrix& a = p.matrices[m];
      const WeightFormat format = F == kMixed ? a.format : F;
      const uint8_t* x = warp_inputs;
      int left = share.count, scale_tile = share.first & 1;
#pragma unroll 1
      do {
        const int count = min(TilesOfChunk(format), left);
        BarrierWait(barrier, phase);
        const uint8_t* tile = static_cast<const uint8_t*>(__cvta_shared_to_generic(slot));
        CallWithFormat<F>(format, [&]<WeightFormat G>() {
          MultiplyChunk<G, NT, NX>(tile, count, lane, x, tokens, scales, scale_tile, b, acc);
        });
        x += count * tokens.tile();
        scale_tile += count;
        left -= count;
        __syncwarp();
        stream.Request(p, range, slot, barrier);
        slot += kSlotBytes, barrier += 8;
        if (slot == slots_end) slot = ring, barrier = full, phase ^= 1;
      } while (left > 0);
      // Rows g and g + 8, tokens 8 n + 2 t + {0, 1}.
      using X = Inputs<NT, NX>;
      float sum[X::kTokenTiles][4];
      JoinSums<NT, NX>(acc, sum);
      const int row = lane / 4,
                n = direct ? RowTile(p, m, range.group, item) * 16 + row : (item - range.begin) * 16 + row;
      const int begin = direct ? range.group * p.rows_per_group : 0;
      const int end = !direct ? n + 16 : p.groups == 1 ? a.rows : begin + p.rows_per_group;
      float* const to = direct ? a.y : exchange.partials + part * p.num_tokens * stride;
      const int64_t token_stride = direct ? a.rows : stride;
#pragma unroll
      for (int j = 0; j < 2 * X::kTokenTiles; ++j) {
        const int token = j / 2 * 8 + lane % 4 * 2 + j % 2;
        if (token >= p.num_tokens) continue;  // NT = 1: the lanes of the second terms have none
        float* y = to + token * token_stride + n;
        const float factor = !direct ? 1.0f : p.norm != nullptr ? a.factor * row_scales[token] : a.factor;
        if (n >= begin && n < end) y[0] = sum[j / 2][j % 2] * factor;
        if (n + 8 >= begin && n + 8 < end) y[8] = sum[j / 2][2 + j % 2] * factor;
      }
    }
    if (direct) continue;
    __syncthreads();
    if (slices > 1 && i == cluster) ClusterWait();  // the other blocks have begun: their memory may be written
    exchange.received = reinterpret_cast<float4*>(exchange.partials +
                                                  parts * p.num_tokens * Exchange::Stride(p.max_items)) +
                        parity * (p.num_tokens * Exchange::Quads(p.max_items, slices) * slices);
    Reduce(p, range, row_scales, exchange, rank, parity);
    parity ^= 1;
  }
}

template <WeightFormat F, int NT, int NX>
void LaunchTileLinear(const ExecContext& ctx, const Params& p) {
  const auto kernel = TileLinearKernel<F, NT, NX>;
  const size_t shared_bytes = std::max(SharedBytes(p, p.num_tokens, NX, p.slots), kOneBlock);
  LaunchClusters(ctx, kernel, 1 << p.log_slices, dim3(static_cast<unsigned>(p.num_clusters << p.log_slices)),
                 dim3(kThreads), shared_bytes, p);
}

}  // namespace dsv4::tile_linear
