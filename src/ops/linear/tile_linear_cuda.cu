#include <algorithm>
#include <map>
#include <mutex>

#include "base/check.h"
#include "device/launch.cuh"
#include "ops/linear/tile_linear.h"
#include "ops/linear/tile_stream.cuh"
#include "ops/tile_mma.cuh"

namespace dsv4 {

namespace {

constexpr int kWarps = 16, kThreads = 32 * kWarps;
constexpr int kSlots = 3, kSlotBytes = 4 * 576;  // a warp's chunks in flight: 4 FP4 tiles, 2 FP8 or 1 BF16
constexpr int kMaxClusters = 256;
constexpr int64_t kInputBytes = 65536;  // of x, that one block reads and converts, before K is cut over a cluster
constexpr WeightFormat kMixed = WeightFormat::kF32;  // as a template argument: each matrix has its own format

struct Matrix {
  const uint8_t* codes;
  const float* scales;  // FP8: [row tiles, ceil(K/128)]
  float* y;
  float factor;
  int rows, first_item;
  WeightFormat format;
};

struct Params {
  const float* x;
  int64_t x_stride;
  int cols, tile_cols, num_tokens;
  int log_segments, log_slices, log_parts;  // Q = S P
  // Ranges of items, one for each cluster; of a matrix with groups [group][split].
  int num_clusters, items, items_each, items_rest, num_matrices, groups, splits, rows_per_group, items_per_group;
  int max_items;  // of a range
  Matrix matrices[kMaxTileLinearMatrices];
  int first_item[kMaxClusters + 1];  // several formats: equal bytes for each cluster
};

struct Range {
  int group, begin, end;
};

template <WeightFormat F>
__device__ __forceinline__ Range RangeAt(const Params& p, int i) {
  if (p.groups > 1) {
    const int group = i / p.splits, split = i - group * p.splits, first = group * p.items_per_group;
    return {group, first + p.items_per_group * split / p.splits, first + p.items_per_group * (split + 1) / p.splits};
  }
  if constexpr (F == kMixed) return {0, p.first_item[i], p.first_item[i + 1]};
  const int begin = i * p.items_each + min(i, p.items_rest);
  return {0, begin, begin + p.items_each + (i < p.items_rest ? 1 : 0)};
}

__device__ __forceinline__ int MatrixOf(const Params& p, int item) {
  if (p.num_matrices == 1) return 0;
  int m = 0;
  while (m + 1 < p.num_matrices && item >= p.matrices[m + 1].first_item) ++m;
  return m;
}

// Where groups do not begin at row tiles, a tile belongs to two; the last item of a group may come twice.
__device__ __forceinline__ int RowTile(const Params& p, int matrix, int group, int item) {
  if (p.groups == 1) return item - p.matrices[matrix].first_item;
  const int first_row = group * p.rows_per_group;
  return min(first_row / 16 + item - group * p.items_per_group, (first_row + p.rows_per_group - 1) / 16);
}

// What a warp does: the items begin + offset, + step, .. of a range, in each of them the column tiles [first, first + count).
struct Share {
  int offset, step, first, count;
};

__device__ __forceinline__ constexpr int TilesOfChunk(WeightFormat f) {
  return f == WeightFormat::kBf16 ? 1 : f == WeightFormat::kFp8Block ? 2 : 4;
}

// A warp's tiles of a range, in order, in chunks through its ring.
template <WeightFormat F>
class TileStream {
 public:
  __device__ __forceinline__ TileStream(uint32_t ring, uint32_t barriers) : ring_(ring), barriers_(barriers) {}

  __device__ __forceinline__ void Start(const Params& p, const Range& range, const Share& share) {
    item_ = range.begin + share.offset;
    Seek(p, range, share);
#pragma unroll 1
    for (int s = 0; s < kSlots; ++s) Fetch(p, range, share, s);
  }

  // The next chunk of the stream into a slot that nobody reads any more.
  __device__ __forceinline__ void Fetch(const Params& p, const Range& range, const Share& share, int slot) {
    if (item_ >= range.end) return;
    const int count = min(left_, TilesOfChunk(format_)), bytes = count * static_cast<int>(TileBytes(format_));
    if (ElectLane()) {
      ExpectBytes(barriers_ + 8 * slot, static_cast<uint32_t>(bytes));
      CopyBulk(ring_ + slot * kSlotBytes, tile_, static_cast<uint32_t>(bytes), barriers_ + 8 * slot);
    }
    tile_ += bytes;
    left_ -= count;
    if (left_ == 0) {
      item_ += share.step;
      Seek(p, range, share);
    }
  }

 private:
  __device__ __forceinline__ void Seek(const Params& p, const Range& range, const Share& share) {
    if (item_ >= range.end) return;
    const int m = MatrixOf(p, item_);
    if constexpr (F == kMixed) format_ = p.matrices[m].format;
    tile_ = p.matrices[m].codes + (static_cast<int64_t>(RowTile(p, m, range.group, item_)) * p.tile_cols + share.first) * TileBytes(format_);
    left_ = share.count;
  }

  uint32_t ring_, barriers_;
  const uint8_t* tile_ = nullptr;
  int item_ = 0, left_ = 0;
  WeightFormat format_ = F;
};

// The FP8 scales of one item: a lane holds those of columns 128 (2 lane + {0, 1}) .. from the warp's first column tile on.
struct ItemScales {
  float a, b;
  __device__ __forceinline__ static ItemScales Load(const Params& p, int matrix, int row_tile, int first_tile, int lane) {
    const int across = (p.cols + 127) / 128, at = first_tile / 2 + lane;
    const float* scales = p.matrices[matrix].scales + static_cast<int64_t>(row_tile) * across;
    return {at < across ? scales[at] : 0.0f, at + 32 < across ? scales[at + 32] : 0.0f};
  }
  __device__ __forceinline__ float Of(int block) const {
    const float low = __shfl_sync(0xFFFFFFFFu, a, block & 31), high = __shfl_sync(0xFFFFFFFFu, b, block & 31);
    return block < 32 ? low : high;
  }
};

// The B fragments of a tile: part (NX = 3: lo, mid, hi), half, token, t (columns 16 t + 8 half ..) of 16 bytes.
template <int NT, int NX>
struct Inputs {
  int offset[NT];   // of the lane's token in each n-tile
  int half, part;   // strides
  bool active;      // NT = 1: the lane has a token; what the others hold in `b` multiplies columns that nobody reads

  __device__ __forceinline__ Inputs(int num_tokens, int lane) {
    asm volatile("mov.u32 %0, %1;" : "=r"(half) : "r"(num_tokens * 64));  // kept in a register
    part = 2 * half;
#pragma unroll
    for (int n = 0; n < NT; ++n) offset[n] = min(8 * n + lane / 4, num_tokens - 1) * 64 + lane % 4 * 16;
    active = lane / 4 < num_tokens;
  }
  __device__ __forceinline__ int tile() const { return NX * part; }
};

// acc += tile (16 x 64) * x
template <WeightFormat F, int NT, int NX>
__device__ __forceinline__ void MultiplyTile(const uint8_t* tile, int lane, const uint8_t* x, const Inputs<NT, NX>& inputs, float scale, uint4 (&b)[2],
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
        const uint4* from = reinterpret_cast<const uint4*>(x + part * inputs.part + half * inputs.half + inputs.offset[n]);
        if (NT > 1 || inputs.active) b[half] = *from;
        float(&d)[4] = F == WeightFormat::kFp8Block ? sum[n] : acc[n];
        MmaBf16(d, a[2 * half], b[half].x, b[half].y);
        MmaBf16(d, a[2 * half + 1], b[half].z, b[half].w);
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

// A chunk: even tiles into acc[0], odd ones into acc[1], two at a time.
template <WeightFormat F, int NT, int NX>
__device__ __forceinline__ void MultiplyChunk(const uint8_t* tile, int count, int lane, const uint8_t* x, const Inputs<NT, NX>& inputs,
                                              const ItemScales& scales, int scale_tile, uint4 (&b)[2][2], float (&acc)[2][NT][4]) {
  constexpr int kTile = static_cast<int>(TileBytes(F));
  float scale[2] = {1, 1};
#pragma unroll 1
  for (; count >= 2; count -= 2) {
    if constexpr (F == WeightFormat::kFp8Block) scale[0] = scales.Of(scale_tile / 2), scale[1] = scales.Of((scale_tile + 1) / 2);
#pragma unroll
    for (int i = 0; i < 2; ++i) MultiplyTile<F, NT, NX>(tile + i * kTile, lane, x + i * inputs.tile(), inputs, scale[i], b[i], acc[i]);
    tile += 2 * kTile;
    x += 2 * inputs.tile();
    scale_tile += 2;
  }
  if (count > 0) {
    if constexpr (F == WeightFormat::kFp8Block) scale[0] = scales.Of(scale_tile / 2);
    MultiplyTile<F, NT, NX>(tile, lane, x, inputs, scale[0], b[0], acc[0]);
  }
}

// Columns [first, first + 64 tiles) of x in shared memory as B fragments of BF16, tile by tile.
template <int NX>
__device__ __forceinline__ void StageInputs(const Params& p, int group, int first, int tiles, uint8_t* shared) {
  const int octets = tiles * 8;
  const bool aligned = (reinterpret_cast<uintptr_t>(p.x) | static_cast<uintptr_t>(p.x_stride * 4) | static_cast<uintptr_t>(p.cols * 4)) % 16 == 0;
#pragma unroll 2
  for (int i = threadIdx.x; i < p.num_tokens * octets; i += kThreads) {
    const int token = p.num_tokens == 1 ? 0 : i / octets, octet = i - token * octets, k = first + 8 * octet;
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
    uint8_t* out = shared + (tile * NX * 2 + half) * p.num_tokens * 64 + token * 64 + t * 16;
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
        *reinterpret_cast<uint4*>(out + part * p.num_tokens * 128) = make_uint4(words[part][0], words[part][1], words[part][2], words[part][3]);
      }
    }
  }
}

// y of four rows of an item's tile, from row `first` of the tile on.
__device__ __forceinline__ void WriteRows(const Params& p, const Range& range, int item, int first, int token, float4 sum) {
  const int m = MatrixOf(p, item);
  const Matrix& a = p.matrices[m];
  const int n = RowTile(p, m, range.group, item) * 16 + first, begin = range.group * p.rows_per_group;
  const int end = p.groups == 1 ? a.rows : begin + p.rows_per_group;
  float* y = a.y + static_cast<int64_t>(token) * a.rows + n;
  const float v[4] = {sum.x * a.factor, sum.y * a.factor, sum.z * a.factor, sum.w * a.factor};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (n + i >= begin && n + i < end) y[i] = v[i];
  }
}

__device__ __forceinline__ float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

// Sum of `count` (1, 2, 4 or 8) terms as a balanced tree: cut over blocks or warps, the sum of Q segments has the same bits.
__device__ __forceinline__ float4 TreeSum(const float4* terms, int stride, int count) {
  float4 sum = terms[0];
  if (count >= 2) sum = sum + terms[stride];
  if (count >= 4) sum = sum + (terms[2 * stride] + terms[3 * stride]);
  if (count >= 8) sum = sum + ((terms[4 * stride] + terms[5 * stride]) + (terms[6 * stride] + terms[7 * stride]));
  return sum;
}

// Partial sums of a range, [part][token][row], and of what this block owns of it, [token][row quad / S][slice] float4: row
// quads go round the blocks of the cluster.
struct Exchange {
  float* partials;
  float4* received;
  uint32_t barrier;

  __host__ __device__ __forceinline__ static int Stride(int items) { return 16 * items + 4; }
  __host__ __device__ __forceinline__ static int Quads(int items, int slices) { return (4 * items + slices - 1) / slices; }
};

// All warps' partial sums of a range, which lie in shared memory, become y.
__device__ __forceinline__ void Reduce(const Params& p, const Range& range, const Exchange& e, int rank, uint32_t parity) {
  const int slices = 1 << p.log_slices, parts = 1 << p.log_parts, items = range.end - range.begin;
  const int quads = 4 * items, stride = Exchange::Stride(items) / 4, part_stride = p.num_tokens * stride;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const float4* partials = reinterpret_cast<const float4*>(e.partials);
  if (slices == 1) {
    // One token: the warps share its rows.
    const int first = p.num_tokens == 1 ? static_cast<int>(threadIdx.x) : lane, step = p.num_tokens == 1 ? kThreads : 32;
    for (int token = p.num_tokens == 1 ? 0 : warp; token < p.num_tokens; token += kWarps) {
      for (int quad = first; quad < quads; quad += step) {
        WriteRows(p, range, range.begin + quad / 4, quad % 4 * 4, token, TreeSum(partials + token * stride + quad, part_stride, parts));
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
      StoreToCluster(ClusterAddress(SharedAddress(to), owner), sum, ClusterAddress(e.barrier, owner));
    }
  }
  WaitClusterBarrier(e.barrier, parity);
  for (int token = warp; token < p.num_tokens; token += kWarps) {
    for (int i = lane; i * slices + rank < quads; i += 32) {
      const int quad = i * slices + rank;
      WriteRows(p, range, range.begin + quad / 4, quad % 4 * 4, token, TreeSum(e.received + (token * owned + i) * slices, 1, slices));
    }
  }
}

template <WeightFormat F, int NT, int NX>
__global__ void __launch_bounds__(kThreads, NT == 1 && F != kMixed ? 2 : 1) TileLinearKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kWarps * kSlots + 1];
  AllowNext();
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  const int slices = 1 << p.log_slices, parts = 1 << p.log_parts;
  const int rank = static_cast<int>(blockIdx.x) & (slices - 1), cluster = static_cast<int>(blockIdx.x) >> p.log_slices;
  const int part = warp & (parts - 1), segment = rank * parts + part;
  const int first_tile = p.tile_cols * rank >> p.log_slices, end_tile = p.tile_cols * (rank + 1) >> p.log_slices;
  Share share;
  share.offset = warp >> p.log_parts;
  share.step = kWarps >> p.log_parts;
  share.first = p.tile_cols * segment >> p.log_segments;
  share.count = (p.tile_cols * (segment + 1) >> p.log_segments) - share.first;
  const uint32_t ring = SharedAddress(shared) + warp * (kSlots * kSlotBytes), full = SharedAddress(barriers) + warp * (kSlots * 8);

  Range range = RangeAt<F>(p, cluster);
  TileStream<F> stream(ring, full);
  if (ElectLane()) {
#pragma unroll
    for (int s = 0; s < kSlots; ++s) InitBarrier(full + 8 * s);
    if (warp == 0) InitBarrier(SharedAddress(barriers + kWarps * kSlots));
    FenceBarrierInit();
  }
  __syncwarp();
  stream.Start(p, range, share);
  if (slices > 1) ClusterArriveRelaxed();
  ItemScales next_scales = {};
  const auto load_scales = [&](int item) {
    if (item >= range.end) return;
    const int m = MatrixOf(p, item);
    if (F == kMixed && p.matrices[m].format != WeightFormat::kFp8Block) return;
    next_scales = ItemScales::Load(p, m, RowTile(p, m, range.group, item), share.first, lane);
  };
  if constexpr (F == WeightFormat::kFp8Block || F == kMixed) load_scales(range.begin + share.offset);
 WaitForPrevious();

  uint8_t* const inputs = shared + kWarps * kSlots * kSlotBytes;
  const Inputs<NT, NX> tokens(p.num_tokens, lane);
  const uint8_t* const warp_inputs = inputs + (share.first - first_tile) * tokens.tile();
  Exchange exchange;
  exchange.partials = reinterpret_cast<float*>(inputs + ((p.tile_cols + slices - 1) >> p.log_slices) * tokens.tile());
  exchange.barrier = SharedAddress(barriers + kWarps * kSlots);
  const bool direct = p.log_segments == 0;
  const int num_ranges = p.groups == 1 ? p.num_clusters : p.groups * p.splits;
  uint32_t parity = 0, phase = 0;
  int slot = 0;
  uint4 b[2][2] = {};
  for (int i = cluster; i < num_ranges; i += p.num_clusters) {
    if (i != cluster) {  // only groups that outnumber the clusters
      __syncthreads();
      range = RangeAt<F>(p, i);
      slot = 0, phase = 0;
      if (ElectLane()) {  // the ring starts anew
        for (int s = 0; s < kSlots; ++s) {
          asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(full + 8 * s) : "memory");
          InitBarrier(full + 8 * s);
        }
        FenceBarrierInit();
      }
      __syncwarp();
      stream.Start(p, range, share);
      if constexpr (F == WeightFormat::kFp8Block || F == kMixed) load_scales(range.begin + share.offset);
    }
    const int items = range.end - range.begin, stride = Exchange::Stride(items);
    StageInputs<NX>(p, range.group, first_tile * 64, end_tile - first_tile, inputs);
    if (slices > 1 && threadIdx.x == 0) {
      ExpectBytes(exchange.barrier, static_cast<uint32_t>(p.num_tokens * ((4 * items - rank + slices - 1) >> p.log_slices) * slices) * 16);
    }
    __syncthreads();
    for (int item = range.begin + share.offset; item < range.end; item += share.step) {
      float acc[2][NT][4];
#pragma unroll
      for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) acc[0][n][j] = acc[1][n][j] = 0;
      }
      const ItemScales scales = next_scales;
      if constexpr (F == WeightFormat::kFp8Block || F == kMixed) load_scales(item + share.step);
      const int m = MatrixOf(p, item);
      const Matrix& a = p.matrices[m];
      const WeightFormat format = F == kMixed ? a.format : F;
      const uint8_t* x = warp_inputs;
      int left = share.count, scale_tile = share.first & 1;
#pragma unroll 1
      do {
        const int count = min(TilesOfChunk(format), left);
        WaitBarrier(full + 8 * slot, phase);
        const uint8_t* tile = shared + (warp * kSlots + slot) * kSlotBytes;
        const auto multiply = [&]<WeightFormat G>() { MultiplyChunk<G, NT, NX>(tile, count, lane, x, tokens, scales, scale_tile, b, acc); };
        if constexpr (F != kMixed) {
          multiply.template operator()<F>();
        } else {
          switch (format) {
            case WeightFormat::kNvfp4: multiply.template operator()<WeightFormat::kNvfp4>(); break;
            case WeightFormat::kMxfp4: multiply.template operator()<WeightFormat::kMxfp4>(); break;
            case WeightFormat::kFp8Block: multiply.template operator()<WeightFormat::kFp8Block>(); break;
            default: multiply.template operator()<WeightFormat::kBf16>(); break;
          }
        }
        x += count * tokens.tile();
        scale_tile += count;
        left -= count;
        __syncwarp();
        stream.Fetch(p, range, share, slot);
        if (++slot == kSlots) slot = 0, phase ^= 1;
      } while (left > 0);
      // Rows g and g + 8, tokens 8 n + 2 t + {0, 1}.
      const int row = lane / 4, n = direct ? RowTile(p, m, range.group, item) * 16 + row : (item - range.begin) * 16 + row;
      const int begin = direct ? range.group * p.rows_per_group : 0;
      const int end = !direct ? n + 16 : p.groups == 1 ? a.rows : begin + p.rows_per_group;
      const float factor = direct ? a.factor : 1.0f;
      float* const to = direct ? a.y : exchange.partials + part * p.num_tokens * stride;
      const int64_t token_stride = direct ? a.rows : stride;
#pragma unroll
      for (int j = 0; j < 2 * NT; ++j) {
        const int token = j / 2 * 8 + lane % 4 * 2 + j % 2;
        if (token >= p.num_tokens) continue;
        float* y = to + token * token_stride + n;
        if (n >= begin && n < end) y[0] = (acc[0][j / 2][j % 2] + acc[1][j / 2][j % 2]) * factor;
        if (n + 8 >= begin && n + 8 < end) y[8] = (acc[0][j / 2][2 + j % 2] + acc[1][j / 2][2 + j % 2]) * factor;
      }
    }
    if (direct) continue;
    __syncthreads();
    if (slices > 1 && i == cluster) ClusterWait();  // the others have begun: their memory may be written
    exchange.received = reinterpret_cast<float4*>(exchange.partials + parts * p.num_tokens * Exchange::Stride(p.max_items)) +
                        parity * (p.num_tokens * Exchange::Quads(p.max_items, slices) * slices);
   Reduce(p, range, exchange, rank, parity);
    parity ^= 1;
  }
}

// How a product is cut. Segments, and with them the bits of a row, are a function of the shapes; slices, clusters and so who
// sums what may depend on T.
struct Cut {
  int log_segments, log_slices, clusters;
};

int MaxClusters(int slices);

Cut ChooseCut(int tile_cols, int items, int groups, int64_t num_tokens) {
  const int sms = NumSms();
  Cut cut = {};
  const bool direct = items >= 8 * sms && tile_cols <= 128;  // every warp has row tiles of its own
  while (!direct && cut.log_segments < 3 && tile_cols >> (cut.log_segments + 1) >= 1) ++cut.log_segments;
  while (cut.log_slices < cut.log_segments && std::min<int64_t>(num_tokens, 32) * tile_cols * 256 >> cut.log_slices > kInputBytes) ++cut.log_slices;
  cut.clusters = std::min({cut.log_slices == 0 ? sms : MaxClusters(1 << cut.log_slices), items, kMaxClusters});
  if (groups > 1) cut.clusters = std::min(cut.clusters, std::max(1, cut.clusters / groups) * groups);
  return cut;
}

size_t SharedBytes(const Params& p, int num_tokens, int nx) {
  const int slices = 1 << p.log_slices;
  size_t bytes = static_cast<size_t>(kWarps * kSlots * kSlotBytes) + static_cast<size_t>(CeilDiv(p.tile_cols, slices) * num_tokens) * 128 * static_cast<size_t>(nx);
  if (p.log_segments > 0) bytes += static_cast<size_t>((num_tokens << p.log_parts) * Exchange::Stride(p.max_items)) * 4;
  if (p.log_slices > 0) bytes += 2 * static_cast<size_t>(num_tokens * slices * Exchange::Quads(p.max_items, slices)) * 16;
  return bytes;
}

// Clusters of `slices` blocks that run at once: a cluster lies in one GPC, and GPCs have different numbers of multiprocessors.
int MaxClusters(int slices) {
  static std::mutex mutex;
  static std::map<int, int> known;
  const std::lock_guard lock(mutex);
  int& count = known[slices];
  if (count == 0) {
    const auto kernel = TileLinearKernel<WeightFormat::kNvfp4, 1, 1>;
    constexpr int kOnePerMultiprocessor = 160 * 1024;
    EnsureSharedMemory(reinterpret_cast<const void*>(kernel), kOnePerMultiprocessor);
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(slices), 1, 1};
    cudaLaunchConfig_t config = {};
    config.attrs = &attribute;
    config.numAttrs = 1;
    config.gridDim = dim3(static_cast<unsigned>(NumSms() / slices * slices));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kOnePerMultiprocessor;
    if (cudaOccupancyMaxActiveClusters(&count, kernel, &config) != cudaSuccess || count < 1) count = std::max(1, NumSms() / (2 * slices));
  }
  return count;
}

template <WeightFormat F, int NT, int NX>
void LaunchTileLinear(const ExecContext& ctx, const Params& p) {
  const auto kernel = TileLinearKernel<F, NT, NX>;
  const size_t shared_bytes = SharedBytes(p, p.num_tokens, NX);
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
  config.gridDim = dim3(static_cast<unsigned>(p.num_clusters << p.log_slices));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = StreamOf(ctx);
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, p);
  if (error != cudaSuccess) NoteCudaError(error, "linear");
}

template <WeightFormat F>
void LaunchFormat(const ExecContext& ctx, const Params& p) {
  if (p.num_tokens <= 8) return LaunchTileLinear<F, 1, 1>(ctx, p);
  if (p.num_tokens <= 16) return LaunchTileLinear<F, 2, 1>(ctx, p);
  LaunchTileLinear<F, 4, 1>(ctx, p);
}

float TileFactor(WeightFormat f) { return f == WeightFormat::kNvfp4 ? kTileFactor<WeightFormat::kNvfp4> : 1.0f; }

}  // namespace

void TileLinear(const ExecContext& ctx, const float* x, int64_t num_tokens, const TileLinearMatrix* matrices, int count) {
  DSV4_CHECK(count >= 1 && count <= kMaxTileLinearMatrices);
  Params p = {};
  p.num_matrices = count;
  p.cols = static_cast<int>(matrices[0].w.cols);
  p.tile_cols = static_cast<int>(CeilDiv(p.cols, kTileCols64));
  p.groups = static_cast<int>(matrices[0].groups);
  p.x_stride = matrices[0].groups * matrices[0].w.cols;
  p.rows_per_group = static_cast<int>(matrices[0].w.rows / p.groups);
  p.items_per_group = static_cast<int>(CeilDiv(p.rows_per_group, 16)) + (p.groups > 1 && p.rows_per_group % 16 != 0 ? 1 : 0);
  int64_t bytes = 0;
  WeightFormat format = matrices[0].w.format;
  for (int i = 0; i < count; ++i) {
    const QuantTensor& w = matrices[i].w;
    DSV4_CHECK(w.layout == WeightLayout::kTiles && w.cols == matrices[0].w.cols && (matrices[i].groups == 1 || count == 1));
    p.matrices[i] = {.codes = w.codes,
                     .scales = reinterpret_cast<const float*>(w.block_scale),
                     .factor = w.global_scale * TileFactor(w.format),
                     .rows = static_cast<int>(w.rows),
                     .first_item = p.items,
                     .format = w.format};
    const int here = p.groups > 1 ? p.groups * p.items_per_group : static_cast<int>(CeilDiv(w.rows, 16));
    p.items += here;
    bytes += here * TileBytes(w.format);
    if (w.format != format) format = kMixed;
  }
  if (p.items == 0 || num_tokens == 0) return;
  const int nx = ctx.f32_inputs ? 3 : 1;
  if (nx == 3) format = kMixed;

  const auto cut_for = [&](int64_t tokens) {
    const Cut cut = ChooseCut(p.tile_cols, p.items, p.groups, tokens * nx);
    p.log_segments = cut.log_segments;
    p.log_slices = cut.log_slices;
    p.log_parts = cut.log_segments - cut.log_slices;
    p.num_clusters = cut.clusters;
    p.splits = std::max(1, cut.clusters / p.groups);
    p.items_each = p.items / cut.clusters;
    p.items_rest = p.items % cut.clusters;
    p.max_items = static_cast<int>(p.groups > 1 ? CeilDiv(p.items_per_group, p.splits) : CeilDiv(p.items, cut.clusters));
    if (format != kMixed || p.groups > 1) return;
    int64_t before = 0;
    int cluster = 0, item = 0;
    p.max_items = 0;
    for (int i = 0; i < count; ++i) {
      const int end = i + 1 < count ? p.matrices[i + 1].first_item : p.items;
      for (; item < end; ++item, before += TileBytes(p.matrices[i].format)) {
        while (cluster < cut.clusters && before * cut.clusters >= bytes * cluster) p.first_item[cluster++] = item;
      }
    }
    while (cluster <= cut.clusters) p.first_item[cluster++] = p.items;
    for (int c = 0; c < cut.clusters; ++c) p.max_items = std::max(p.max_items, p.first_item[c + 1] - p.first_item[c]);
  };

  for (int64_t first = 0; first < num_tokens;) {
    int64_t tokens = std::min<int64_t>(num_tokens - first, nx == 3 ? 8 : 32);
    cut_for(tokens);
    while (tokens > 1 && SharedBytes(p, static_cast<int>(tokens), nx) > 227 * 1024) cut_for(tokens = (tokens + 1) / 2);
    DSV4_CHECK(SharedBytes(p, static_cast<int>(tokens), nx) <= 227 * 1024, "K ", p.cols);
    p.num_tokens = static_cast<int>(tokens);
    p.x = x + first * p.x_stride;
    for (int i = 0; i < count; ++i) p.matrices[i].y = matrices[i].y + first * matrices[i].w.rows;
    if (nx == 3) {
      LaunchTileLinear<kMixed, 1, 3>(ctx, p);
    } else {
      switch (format) {
        case WeightFormat::kNvfp4: LaunchFormat<WeightFormat::kNvfp4>(ctx, p); break;
        case WeightFormat::kMxfp4: LaunchFormat<WeightFormat::kMxfp4>(ctx, p); break;
        case WeightFormat::kFp8Block: LaunchFormat<WeightFormat::kFp8Block>(ctx, p); break;
        case WeightFormat::kBf16: LaunchFormat<WeightFormat::kBf16>(ctx, p); break;
        case kMixed: LaunchFormat<kMixed>(ctx, p); break;
      }
    }
    first += tokens;
  }
}

}  // namespace dsv4
