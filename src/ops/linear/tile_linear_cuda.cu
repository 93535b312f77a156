#include <algorithm>

#include "base/check.h"
#include "device/launch.cuh"
#include "ops/linear/tile_linear.h"
#include "ops/linear/tile_ring.cuh"
#include "ops/tile_mma.cuh"

namespace dsv4 {

namespace {

constexpr int kWarps = 16, kThreads = 32 * kWarps;
constexpr int kSlots = 2;           // chunks of weights in flight, for each warp
constexpr int kSlotBytes = 4 * 576;  // 4 FP4, 2 FP8 or 1 BF16 tile
constexpr int kRingBytes = kWarps * kSlots * kSlotBytes;
constexpr int kMaxClusters = 256;
constexpr WeightFormat kMixed = WeightFormat::kF32;  // as a template argument: each matrix has its own format

struct Matrix {
  const uint8_t* codes;
  const float* scales;  // FP8: [row tiles, ceil(K/128)]
  float* y;
  float factor;
  int rows, rows_per_group, items_per_group, first_item;
  WeightFormat format;
};

struct Params {
  const float* x;
  int64_t x_stride;
  int cols, tile_cols, num_tokens, num_matrices;
  int log_slices, log_parts;  // S, P
  Matrix matrices[kMaxTileLinearMatrices];
  int first_item[kMaxClusters + 1];  // of each cluster
};

// Items [begin, end) that lie in one group of one matrix.
struct Segment {
  int matrix, group, begin, end;
};

__device__ __forceinline__ Segment SegmentAt(const Params& p, int item, int limit) {
  int m = 0;
  while (m + 1 < p.num_matrices && item >= p.matrices[m + 1].first_item) ++m;
  const Matrix& a = p.matrices[m];
  const int group = (item - a.first_item) / a.items_per_group;
  return {m, group, item, min(limit, a.first_item + (group + 1) * a.items_per_group)};
}

// Where groups do not begin at row tiles, a tile belongs to two; the last item of a group may come twice.
__device__ __forceinline__ int RowTile(const Matrix& a, const Segment& s, int item) {
  const int first_row = s.group * a.rows_per_group;
  return min(first_row / 16 + item - a.first_item - s.group * a.items_per_group, (first_row + a.rows_per_group - 1) / 16);
}

// A warp's way through the items of its cluster: every `step`-th of each segment.
struct Cursor {
  Segment segment;
  int item;
  bool done;

  __device__ __forceinline__ void Start(const Params& p, int begin, int limit, int offset, int step) {
    done = begin >= limit;
    if (done) return;
    segment = SegmentAt(p, begin, limit);
    item = begin + offset;
    Settle(p, limit, offset);
  }
  __device__ __forceinline__ void Next(const Params& p, int limit, int offset, int step) {
    item += step;
    Settle(p, limit, offset);
  }

 private:
  __device__ __forceinline__ void Settle(const Params& p, int limit, int offset) {
    while (item >= segment.end) {
      if (segment.end >= limit) {
        done = true;
        return;
      }
      segment = SegmentAt(p, segment.end, limit);
      item = segment.begin + offset;
    }
  }
};

template <WeightFormat F, int NT, int NX>
__global__ void __launch_bounds__(kThreads, NT * NX == 1 ? 2 : 1) TileLinearKernel(const __grid_constant__ Params p);

// acc += tile (16 x 64) * x. `x`: the tile's columns as B fragments, `x_offset` of the lane's token in each n-tile.
template <WeightFormat F, int NT, int NX>
__device__ __forceinline__ void MultiplyTile(const uint8_t* tile, int lane, const uint8_t* x, const int (&x_offset)[NT], float scale,
                                             float (&acc)[NT][4]) {
  uint32_t a[4][4];
  DecodeTile<F>(LoadTile<F>(tile, lane), a);
  float sum[NT][4];
  if constexpr (F == WeightFormat::kFp8Block) {
#pragma unroll
    for (int n = 0; n < NT; ++n) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int part = 0; part < NX; ++part) {
        const uint4 b = *reinterpret_cast<const uint4*>(x + part * NT * 1024 + half * 512 + x_offset[n]);
        float(&d)[4] = F == WeightFormat::kFp8Block ? sum[n] : acc[n];
        MmaBf16(d, a[2 * half], b.x, b.y);
        MmaBf16(d, a[2 * half + 1], b.z, b.w);
      }
    }
  }
  if constexpr (F == WeightFormat::kFp8Block) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[n][i] = fmaf(scale, sum[n][i], acc[n][i]);
    }
  }
}

template <WeightFormat F, int NT, int NX>
__device__ __forceinline__ void MultiplyChunk(const uint8_t* tile, int count, int lane, const uint8_t* x, const int (&x_offset)[NT],
                                              float scales, int scale_tile, float (&acc)[NT][4]) {
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    float scale = 1;
    if constexpr (F == WeightFormat::kFp8Block) scale = __shfl_sync(0xFFFFFFFFu, scales, (scale_tile + i) / 2);
    MultiplyTile<F, NT, NX>(tile, lane, x, x_offset, scale, acc);
    tile += TileBytes(F);
    x += NX * NT * 1024;
  }
}

// Columns [first, first + 64 tiles) of x in shared memory as B fragments of BF16: tile, part (NX = 3: lo, mid, hi), n-tile,
// half, lane (token g; columns 16 t + 8 half ..) of 16 bytes. Tokens behind T are left out: no lane reads them.
template <int NT, int NX>
__device__ __forceinline__ void StageInputs(const Params& p, int group, int first, int tiles, uint8_t* shared) {
  const int octets = tiles * 8;
  const bool aligned = (reinterpret_cast<uintptr_t>(p.x) | static_cast<uintptr_t>(p.x_stride * 4) | static_cast<uintptr_t>(p.cols * 4)) % 16 == 0;
  for (int i = threadIdx.x; i < p.num_tokens * octets; i += kThreads) {
    const int token = i / octets, octet = i - token * octets, k = first + 8 * octet;
    const float* x = p.x + token * p.x_stride + static_cast<int64_t>(group) * p.cols + k;
    float v[8];
    if (aligned && k + 8 <= p.cols) {
      const float4 low = reinterpret_cast<const float4*>(x)[0], high = reinterpret_cast<const float4*>(x)[1];
      v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w, v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = k + j < p.cols ? x[j] : 0.0f;
    }
    const int tile = octet / 8, t = octet % 8 / 2, half = octet % 2;
    uint8_t* out = shared + ((tile * NX * NT + token / 8) * 2 + half) * 512 + (token % 8 * 4 + t) * 16;
    if constexpr (NX == 1) {
      *reinterpret_cast<uint4*>(out) = make_uint4(PackBf16(v[0], v[1]), PackBf16(v[2], v[3]), PackBf16(v[4], v[5]), PackBf16(v[6], v[7]));
    } else {
      uint32_t words[3][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const Bf16Parts a = SplitToBf16(v[2 * j]), b = SplitToBf16(v[2 * j + 1]);
        words[0][j] = PackBf16(a.lo, b.lo);
        words[1][j] = PackBf16(a.mid, b.mid);
        words[2][j] = PackBf16(a.hi, b.hi);
      }
#pragma unroll
      for (int part = 0; part < 3; ++part) {
        *reinterpret_cast<uint4*>(out + part * NT * 1024) = make_uint4(words[part][0], words[part][1], words[part][2], words[part][3]);
      }
    }
  }
}

// Partial sums of a round: 256 / P rows, of which each block of the cluster owns 256 / (P S). A block's buffer is
// [source: slice, part][token][row], a source padded by one float.
struct PartialLayout {
  int rows, stride, sources;  // rows that a block owns
  __device__ __forceinline__ PartialLayout(const Params& p, int tokens)
      : rows(256 >> (p.log_parts + p.log_slices)), stride(tokens * rows + 1), sources(1 << (p.log_parts + p.log_slices)) {}
};

// Sums the sources of the rows that this block owns and writes y: lanes take sources in turn, then a butterfly.
template <int NT>
__device__ __forceinline__ void ReducePartials(const Params& p, const Segment& s, int base, int rank, const float* partial) {
  const PartialLayout layout(p, 8 * NT);
  const Matrix& a = p.matrices[s.matrix];
  const int lanes = min(layout.sources, 32), outputs = p.num_tokens * layout.rows;
  for (int i = threadIdx.x; i - static_cast<int>(threadIdx.x % 32) < outputs * lanes; i += kThreads) {
    const int output = i / lanes, first = i % lanes;
    float sum = 0;
    if (output < outputs) {
      for (int source = first; source < layout.sources; source += lanes) sum += partial[source * layout.stride + output];
    }
    for (int o = lanes / 2; o > 0; o /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, o);
    if (first != 0 || output >= outputs) continue;
    const int token = output / layout.rows, row = rank * layout.rows + output % layout.rows, item = base + row / 16;
    if (item >= s.end) continue;
    const int n = RowTile(a, s, item) * 16 + row % 16, group_row = n - s.group * a.rows_per_group;
    if (group_row >= 0 && group_row < a.rows_per_group) a.y[static_cast<int64_t>(token) * a.rows + n] = sum * a.factor;
  }
}

template <WeightFormat F, int NT, int NX>
__global__ void __launch_bounds__(kThreads, NT * NX == 1 ? 2 : 1) TileLinearKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kWarps][kSlots];
  AllowNext();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int slices = 1 << p.log_slices, parts = 1 << p.log_parts, step = kWarps >> p.log_parts;
  const int rank = static_cast<int>(blockIdx.x) & (slices - 1), cluster = static_cast<int>(blockIdx.x) >> p.log_slices;
  const int part = warp & (parts - 1), offset = warp >> p.log_parts;
  const int begin = p.first_item[cluster], limit = p.first_item[cluster + 1];
  // Column tiles of the block and of the warp.
  const int first_tile = p.tile_cols * rank >> p.log_slices, end_tile = p.tile_cols * (rank + 1) >> p.log_slices;
  const int warp_tile = first_tile + ((end_tile - first_tile) * part >> p.log_parts);
  const int warp_tiles = first_tile + ((end_tile - first_tile) * (part + 1) >> p.log_parts) - warp_tile;
  const bool reduces = p.log_slices + p.log_parts > 0;
  uint8_t* const inputs = shared + kRingBytes;
  float* const partials = reinterpret_cast<float*>(inputs + (CeilDiv(p.tile_cols, slices) + 1) * NX * NT * 1024);
  const int partial_floats = PartialLayout(p, 8 * NT).stride * PartialLayout(p, 8 * NT).sources;
  const auto format_of = [&](int matrix) { return F == kMixed ? p.matrices[matrix].format : F; };
  const auto tiles_a_chunk = [](WeightFormat f) { return f == WeightFormat::kBf16 ? 1 : f == WeightFormat::kFp8Block ? 2 : 4; };

  if (reduces) ClusterArrive();  // a block may write into another's memory once that has started

  TileRing ring(barriers[warp], shared + warp * kSlots * kSlotBytes, kSlots, kSlotBytes);
  if (lane == 0) ring.Init();
  __syncwarp();

  // Producer: chunks of the warp's items, in order.
  Cursor ahead;
  ahead.Start(p, begin, limit, offset, step);
  const uint8_t* source = nullptr;
  int source_tiles = 0;
  const auto begin_item = [&]() {
    if (ahead.done) return;
    const Matrix& a = p.matrices[ahead.segment.matrix];
    const int64_t tile = static_cast<int64_t>(RowTile(a, ahead.segment, ahead.item)) * p.tile_cols + warp_tile;
    source = a.codes + tile * TileBytes(format_of(ahead.segment.matrix));
    source_tiles = warp_tiles;
  };
  const auto fetch = [&](int slot) {
    if (ahead.done) return;
    const WeightFormat f = format_of(ahead.segment.matrix);
    const int count = min(source_tiles, tiles_a_chunk(f)), bytes = count * static_cast<int>(TileBytes(f));
    if (lane == 0) ring.Fetch(slot, source, bytes);
    source += bytes;
    source_tiles -= count;
    if (source_tiles == 0) {
      ahead.Next(p, limit, offset, step);
      begin_item();
    }
  };
  begin_item();
#pragma unroll
  for (int s = 0; s < kSlots; ++s) fetch(s);

  // FP8: the scales of the next item, a lane for each 128 columns.
  Cursor scale_cursor = {{}, 0, true};
  float next_scales = 0;
  const auto load_scales = [&]() {
    if (scale_cursor.done || format_of(scale_cursor.segment.matrix) != WeightFormat::kFp8Block) return;
    const Matrix& a = p.matrices[scale_cursor.segment.matrix];
    const int across = (p.cols + 127) / 128, at = warp_tile / 2 + lane;
    if (at < across) next_scales = a.scales[static_cast<int64_t>(RowTile(a, scale_cursor.segment, scale_cursor.item)) * across + at];
  };
  if constexpr (F == WeightFormat::kFp8Block || F == kMixed) {
    scale_cursor.Start(p, begin, limit, offset, step);
    load_scales();
  }

  WaitForPrevious();

  int x_offset[NT];
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const int token = min(8 * n + g, p.num_tokens - 1);
    x_offset[n] = token / 8 * 1024 + (token % 8 * 4 + t) * 16;
  }
  const uint8_t* const warp_inputs = inputs + (warp_tile - first_tile) * NX * NT * 1024;

  int staged = -1, parity = 0, slot = 0;
  uint32_t phase = 0;
  Segment pending = {};
  int pending_base = -1;
  for (int next = begin; next < limit;) {
    const Segment segment = SegmentAt(p, next, limit);
    const Matrix& a = p.matrices[segment.matrix];
    if (segment.group != staged) {
      if (staged >= 0) __syncthreads();
      StageInputs<NT, NX>(p, segment.group, first_tile * 64, end_tile - first_tile, inputs);
      __syncthreads();
      staged = segment.group;
    }
    for (int base = segment.begin; base < segment.end; base += step) {
      float acc[NT][4];
#pragma unroll
      for (int n = 0; n < NT; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
      const int item = base + offset;
      const bool valid = item < segment.end;
      if (valid) {
        float scales = 0;
        if constexpr (F == WeightFormat::kFp8Block || F == kMixed) {
          scales = next_scales;
          scale_cursor.Next(p, limit, offset, step);
          load_scales();
        }
        const WeightFormat f = format_of(segment.matrix);
        const int per_chunk = tiles_a_chunk(f);
        const uint8_t* x = warp_inputs;
        for (int done = 0; done < warp_tiles; done += per_chunk) {
          const int count = min(per_chunk, warp_tiles - done), scale_tile = (warp_tile & 1) + done;
          ring.Wait(slot, phase);
          const uint8_t* tile = ring.Slot(slot);
          const auto multiply = [&]<WeightFormat G>() { MultiplyChunk<G, NT, NX>(tile, count, lane, x, x_offset, scales, scale_tile, acc); };
          if constexpr (F != kMixed) {
            multiply.template operator()<F>();
          } else {
            switch (f) {
              case WeightFormat::kNvfp4: multiply.template operator()<WeightFormat::kNvfp4>(); break;
              case WeightFormat::kMxfp4: multiply.template operator()<WeightFormat::kMxfp4>(); break;
              case WeightFormat::kFp8Block: multiply.template operator()<WeightFormat::kFp8Block>(); break;
              default: multiply.template operator()<WeightFormat::kBf16>(); break;
            }
          }
          x += count * NX * NT * 1024;
          __syncwarp();
          fetch(slot);
          if (++slot == kSlots) slot = 0, phase ^= 1;
        }
      }
      if (!reduces) {
        if (valid) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int n = RowTile(a, segment, item) * 16 + g + 8 * i, group_row = n - segment.group * a.rows_per_group;
            if (group_row < 0 || group_row >= a.rows_per_group) continue;
#pragma unroll
            for (int j = 0; j < 2 * NT; ++j) {
              const int token = j / 2 * 8 + 2 * t + j % 2;
              if (token < p.num_tokens) a.y[static_cast<int64_t>(token) * a.rows + n] = acc[j / 2][2 * i + j % 2] * a.factor;
            }
          }
        }
        continue;
      }
      // Everybody has pushed round r - 1 and read round r - 2, whose half of the buffer this round takes.
      ClusterWait();
      if (valid) {
        const PartialLayout layout(p, 8 * NT);
        float* const mine = partials + parity * partial_floats + (rank * parts + part) * layout.stride;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = offset * 16 + g + 8 * i, owner = row / layout.rows, local = row % layout.rows;
          const uint32_t to = ClusterAddress(mine + local, static_cast<uint32_t>(owner));
#pragma unroll
          for (int j = 0; j < 2 * NT; ++j) {
            const int token = j / 2 * 8 + 2 * t + j % 2;
            if (token < p.num_tokens) StoreCluster(to + static_cast<uint32_t>(token * layout.rows) * 4, acc[j / 2][2 * i + j % 2]);
          }
        }
      }
      if (pending_base >= 0) ReducePartials<NT>(p, pending, pending_base, rank, partials + (parity ^ 1) * partial_floats);
      __syncwarp();
      ClusterArrive();
      pending = segment;
      pending_base = base;
      parity ^= 1;
    }
    next = segment.end;
  }
  if (reduces) {
    ClusterWait();
    if (pending_base >= 0) ReducePartials<NT>(p, pending, pending_base, rank, partials + (parity ^ 1) * partial_floats);
  }
}

// How a product is cut; a function of the shapes alone.
struct Cut {
  int log_slices, log_parts, clusters;
};

Cut ChooseCut(int tile_cols, int items) {
  const int sms = NumSms();
  int log_slices = 0;
  while (log_slices < 3 && CeilDiv(tile_cols, int64_t{1} << log_slices) > 16) ++log_slices;
  while (log_slices < 3 && (items << log_slices) < sms * 3 / 4 && tile_cols >> (log_slices + 1) >= 2) ++log_slices;
  const int blocks = log_slices == 0 ? sms : sms / 16 * 16;  // a GPC has 16 or 18 multiprocessors; a cluster lies in one
  const int clusters = std::min({std::max(1, blocks >> log_slices), items, kMaxClusters});
  const int items_each = static_cast<int>(CeilDiv(items, clusters)), slice = tile_cols >> log_slices;
  int log_parts = 0;
  double best = 0;
  for (int lp = 0; lp <= 4 && (slice >> lp) >= 1; ++lp) {
    const int64_t jobs = static_cast<int64_t>(items_each) << lp;
    const double busy = static_cast<double>(jobs) / static_cast<double>(CeilDiv(jobs, kWarps) * kWarps);
    const double even = static_cast<double>(slice) / static_cast<double>(CeilDiv(slice, int64_t{1} << lp) << lp);
    const bool scales_fit = CeilDiv(slice + 1, int64_t{1} << lp) <= 61;
    if (busy * even > best * 1.05 || !scales_fit) best = busy * even, log_parts = lp;
  }
  return {log_slices, log_parts, clusters};
}

template <WeightFormat F, int NT, int NX>
void LaunchTileLinear(const ExecContext& ctx, const Params& p, int clusters, size_t shared_bytes) {
  const auto kernel = TileLinearKernel<F, NT, NX>;
  EnsureSharedMemory(reinterpret_cast<const void*>(kernel), shared_bytes);
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.attrs = attributes;
  if (ctx.overlap) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (p.log_slices > 0) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim = {1u << p.log_slices, 1, 1};
    ++config.numAttrs;
  }
  config.gridDim = dim3(static_cast<unsigned>(clusters << p.log_slices));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = StreamOf(ctx);
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, p);
  if (error != cudaSuccess) NoteCudaError(error, "linear");
}

size_t SharedBytes(const Params& p, int nt, int nx) {
  const size_t inputs = static_cast<size_t>(CeilDiv(p.tile_cols, int64_t{1} << p.log_slices) + 1) * 1024 * static_cast<size_t>(nt * nx);
  const int sources = 1 << (p.log_slices + p.log_parts);
  const size_t partials = sources == 1 ? 0 : 2 * static_cast<size_t>(sources * (8 * nt * (256 / sources) + 1)) * 4;
  return kRingBytes + inputs + partials;
}

template <WeightFormat F>
void LaunchForTokens(const ExecContext& ctx, const Params& p, int nt, int clusters) {
  switch (nt) {
    case 1: return LaunchTileLinear<F, 1, 1>(ctx, p, clusters, SharedBytes(p, 1, 1));
    case 2: return LaunchTileLinear<F, 2, 1>(ctx, p, clusters, SharedBytes(p, 2, 1));
    default: return LaunchTileLinear<F, 4, 1>(ctx, p, clusters, SharedBytes(p, 4, 1));
  }
}

float TileFactor(WeightFormat f) { return f == WeightFormat::kNvfp4 ? kTileFactor<WeightFormat::kNvfp4> : 1.0f; }

}  // namespace

void TileLinear(const ExecContext& ctx, const float* x, int64_t num_tokens, const TileLinearMatrix* matrices, int count) {
  DSV4_CHECK(count >= 1 && count <= kMaxTileLinearMatrices);
  Params p = {};
  p.num_matrices = count;
  p.cols = static_cast<int>(matrices[0].w.cols);
  p.tile_cols = static_cast<int>(CeilDiv(p.cols, kTileCols64));
  p.x_stride = matrices[0].groups * matrices[0].w.cols;
  int items = 0;
  int64_t bytes = 0;
  WeightFormat format = matrices[0].w.format;
  for (int i = 0; i < count; ++i) {
    const auto& [w, y, groups] = matrices[i];
    DSV4_CHECK(w.layout == WeightLayout::kTiles && w.cols == matrices[0].w.cols && (groups == 1 || count == 1));
    const int per_group = static_cast<int>(w.rows / groups);
    const int64_t items_per_group = per_group % 16 == 0 || groups == 1 ? CeilDiv(per_group, 16) : CeilDiv(per_group, 16) + 1;
    p.matrices[i] = {.codes = w.codes,
                     .scales = reinterpret_cast<const float*>(w.block_scale),
                     .y = y,
                     .factor = w.global_scale * TileFactor(w.format),
                     .rows = static_cast<int>(w.rows),
                     .rows_per_group = per_group,
                     .items_per_group = static_cast<int>(items_per_group),
                     .first_item = items,
                     .format = w.format};
    items += static_cast<int>(items_per_group * groups);
    bytes += items_per_group * groups * TileBytes(w.format);
    if (w.format != format) format = kMixed;
  }
  if (items == 0 || num_tokens == 0) return;
  const Cut cut = ChooseCut(p.tile_cols, items);
  p.log_slices = cut.log_slices;
  p.log_parts = cut.log_parts;

  // Consecutive items of about equal bytes for every cluster.
  int64_t before = 0;
  int cluster = 0;
  for (int i = 0, item = 0; i < count; ++i) {
    const int end = i + 1 < count ? p.matrices[i + 1].first_item : items;
    for (; item < end; ++item, before += TileBytes(p.matrices[i].format)) {
      while (cluster < cut.clusters && before * cut.clusters >= bytes * cluster) p.first_item[cluster++] = item;
    }
  }
  while (cluster <= cut.clusters) p.first_item[cluster++] = items;

  const int nx = ctx.f32_inputs ? 3 : 1;
  int max_nt = nx == 3 ? 1 : 4;
  while (max_nt > 1 && SharedBytes(p, max_nt, nx) > 227 * 1024) max_nt /= 2;
  DSV4_CHECK(SharedBytes(p, max_nt, nx) <= 227 * 1024, "K ", p.cols);
  for (int64_t first = 0; first < num_tokens; first += 8 * max_nt) {
    p.num_tokens = static_cast<int>(std::min<int64_t>(num_tokens - first, 8 * max_nt));
    p.x = x + first * p.x_stride;
    for (int i = 0; i < count; ++i) p.matrices[i].y = matrices[i].y + first * matrices[i].w.rows;
    const int nt = p.num_tokens <= 8 ? 1 : p.num_tokens <= 16 ? 2 : 4;
    if (nx == 3) {
      LaunchTileLinear<kMixed, 1, 3>(ctx, p, cut.clusters, SharedBytes(p, 1, 3));
      continue;
    }
    switch (format) {
      case WeightFormat::kNvfp4: LaunchForTokens<WeightFormat::kNvfp4>(ctx, p, nt, cut.clusters); break;
      case WeightFormat::kMxfp4: LaunchForTokens<WeightFormat::kMxfp4>(ctx, p, nt, cut.clusters); break;
      case WeightFormat::kFp8Block: LaunchForTokens<WeightFormat::kFp8Block>(ctx, p, nt, cut.clusters); break;
      case WeightFormat::kBf16: LaunchForTokens<WeightFormat::kBf16>(ctx, p, nt, cut.clusters); break;
      case kMixed: LaunchForTokens<kMixed>(ctx, p, nt, cut.clusters); break;
    }
  }
}

}  // namespace dsv4
