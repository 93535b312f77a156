// The parts of tile_linear_cuda.cu's kernel that run on one warp: the arguments of a launch, a warp's tiles, its stream
// of weights, the inputs as B fragments, the product.
#pragma once

#include "device/barrier.cuh"
#include "device/launch.cuh"
#include "ops/block_reduce.cuh"
#include "ops/linear/tile/tile_linear.h"
#include "ops/tile_mma.cuh"

namespace dsv4::tile_linear {

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
  int slots;                                // of a warp's ring: 2 if x needs the memory
  int log_segments, log_slices, log_parts;  // Q = S P
  // Ranges of items, one per cluster; for a matrix with groups [group][split].
  int num_clusters, items, items_each, items_rest, num_matrices, groups, splits, rows_per_group, items_per_group;
  int max_items;      // of a range
  uint64_t policy;    // of L2 for the weights
  const float* norm;  // or null; the weights of an RMS norm of every row of x
  float norm_eps;
  Matrix matrices[kMaxTileLinearMatrices];
  struct {
    uint16_t begin, end;
  } ranges[kMaxClusters];  // with several formats
};

// With several formats: whether each range has one format.
inline bool RangesHaveOneFormat(const Params& p) {
  return p.num_tokens <= kFewTokens && p.log_segments > 0 && p.log_slices == 0;
}

struct Range {
  int group, begin, end;
};

template <WeightFormat F>
__device__ __forceinline__ Range RangeAt(const Params& p, int i) {
  if (p.groups > 1) {
    const int group = i / p.splits, split = i - group * p.splits, first = group * p.items_per_group;
    return {group, first + p.items_per_group * split / p.splits, first + p.items_per_group * (split + 1) / p.splits};
  }
  if constexpr (F == kMixed) return {0, p.ranges[i].begin, p.ranges[i].end};
  const int begin = i * p.items_each + min(i, p.items_rest);
  return {0, begin, begin + p.items_each + (i < p.items_rest ? 1 : 0)};
}

__device__ __forceinline__ int MatrixOf(const Params& p, int item) {
  if (p.num_matrices == 1) return 0;
  int m = 0;
  while (m + 1 < p.num_matrices && item >= p.matrices[m + 1].first_item) ++m;
  return m;
}

// If groups do not begin at row tiles, a tile belongs to two groups. The last item of a group may occur twice.
__device__ __forceinline__ int RowTile(const Params& p, int matrix, int group, int item) {
  if (p.groups == 1) return item - p.matrices[matrix].first_item;
  const int first_row = group * p.rows_per_group;
  return min(first_row / 16 + item - group * p.items_per_group, (first_row + p.rows_per_group - 1) / 16);
}

// A warp's work: the items begin + offset, + step, .. of a range, and in each of them the column tiles [first, first +
// count).
struct Share {
  int offset, step, first, count;
};

// call<G>(): G is F, or, with several formats, the format that is known at run time.
template <WeightFormat F, typename Call>
__device__ __forceinline__ void CallWithFormat(WeightFormat format, const Call& call) {
  if constexpr (F != kMixed) {
    call.template operator()<F>();
  } else {
    CallWithTileFormat(format, call);
  }
}

// A warp's chunks, in the order in which it multiplies them. A chunk has TilesOfChunk tiles; the last one of an item
// may have fewer, except with kWhole.
template <WeightFormat F, bool kWhole>
class ChunkStream {
 public:
  __device__ __forceinline__ void Start(const Params& p, const Range& range, const Share& share) {
    item_ = range.begin + share.offset;
    end_ = range.end;
    step_ = share.step;
    left_ = 0;
    item_bytes_ = share.count * kTile;
    first_byte_ = share.first * kTile;
    jump_ = (share.step * p.tile_cols - share.count) * kTile;
    Seek(p, range);
  }

  __device__ __forceinline__ void Request(const Params& p, const Range& range, uint32_t slot, uint32_t barrier) {
    if (left_ == 0) return;
    const int bytes = kWhole ? kChunk : min(left_, kChunk);
    if (ElectLane()) {
      BarrierExpect(barrier, static_cast<uint32_t>(bytes));
      BulkLoad(slot, tile_, static_cast<uint32_t>(bytes), barrier, p.policy);
    }
    tile_ += bytes;
    left_ -= bytes;
    if (left_ > 0) return;
    item_ += step_;
    if (item_ < seek_at_) {
      tile_ += jump_;
      left_ = item_bytes_;
    } else {
      Seek(p, range);
    }
  }

 private:
  static constexpr int kTile = static_cast<int>(TileBytes(F)), kChunk = TilesOfChunk(F) * kTile;

  __device__ __forceinline__ void Seek(const Params& p, const Range& range) {
    if (item_ >= end_) return;
    const int m = MatrixOf(p, item_);
    tile_ = p.matrices[m].codes + static_cast<int64_t>(RowTile(p, m, range.group, item_)) * p.tile_cols * kTile +
            first_byte_;
    left_ = item_bytes_;
    seek_at_ = p.groups > 1 && p.rows_per_group % 16 != 0 ? 0
               : m + 1 < p.num_matrices                   ? min(p.matrices[m + 1].first_item, end_)
                                                          : end_;
  }

  const uint8_t* tile_ = nullptr;
  int item_ = 0, end_ = 0, step_ = 0, item_bytes_ = 0, left_ = 0;  // left_: remaining bytes of the item
  int seek_at_ = 0, first_byte_ = 0, jump_ = 0;                    // items below seek_at_ are contiguous
};

// The same if each matrix has its own format.
class MixedStream {
 public:
  __device__ __forceinline__ void Start(const Params& p, const Range& range, const Share& share) {
    item_ = range.begin + share.offset;
    share_ = share;
    left_ = 0;
    Seek(p, range);
  }

  __device__ __forceinline__ void Request(const Params& p, const Range& range, uint32_t slot, uint32_t barrier) {
    if (left_ == 0) return;
    const int count = min(left_, TilesOfChunk(format_)), bytes = count * static_cast<int>(TileBytes(format_));
    if (ElectLane()) {
      BarrierExpect(barrier, static_cast<uint32_t>(bytes));
      BulkLoad(slot, tile_, static_cast<uint32_t>(bytes), barrier, p.policy);
    }
    tile_ += bytes;
    left_ -= count;
    if (left_ > 0) return;
    item_ += share_.step;
    if (item_ < seek_at_) {
      tile_ += jump_;
      left_ = share_.count;
    } else {
      Seek(p, range);
    }
  }

 private:
  __device__ __forceinline__ void Seek(const Params& p, const Range& range) {
    if (item_ >= range.end) return;
    const int m = MatrixOf(p, item_);
    format_ = p.matrices[m].format;
    tile_ = p.matrices[m].codes +
            (static_cast<int64_t>(RowTile(p, m, range.group, item_)) * p.tile_cols + share_.first) * TileBytes(format_);
    left_ = share_.count;
    jump_ = (share_.step * p.tile_cols - share_.count) * static_cast<int>(TileBytes(format_));
    const int end = m + 1 < p.num_matrices ? min(p.matrices[m + 1].first_item, range.end) : range.end;
    seek_at_ = p.groups > 1 && p.rows_per_group % 16 != 0 ? 0 : end;
  }

  Share share_ = {};
  const uint8_t* tile_ = nullptr;
  int item_ = 0, left_ = 0;
  int seek_at_ = 0, jump_ = 0;
  WeightFormat format_ = kMixed;
};

// The FP8 scales of one item: a lane holds the scales of columns 128 (2 lane + {0, 1}) .., counted from the warp's
// first column tile.
struct ItemScales {
  float a, b;
  __device__ __forceinline__ static ItemScales Load(const Params& p, int matrix, int row_tile, int first_tile,
                                                    int lane) {
    const int across = (p.cols + 127) / 128, at = first_tile / 2 + lane;
    const float* scales = p.matrices[matrix].scales + static_cast<int64_t>(row_tile) * across;
    return {at < across ? scales[at] : 0.0f, at + 32 < across ? scales[at + 32] : 0.0f};
  }
  __device__ __forceinline__ float Of(int block) const {
    const float low = __shfl_sync(0xFFFFFFFFu, a, block & 31), high = __shfl_sync(0xFFFFFFFFu, b, block & 31);
    return block < 32 ? low : high;
  }
};

// kPair: the two terms have their own columns, which are added at the end. With one n-tile columns 0..3 are the tokens'
// first terms and 4..7 the second. With more n-tiles the first half has the first terms, the second half the second.
// The B fragments of a tile are [half] [first terms of all tokens, then second][t] (columns 16 t + 8 half ..) of 16
// bytes.
// kExact: three products one after the other; the fragments are [term: lo, mid, hi][half][token][t].
template <int NT, int NX>
struct Inputs {
  static constexpr int kParts = NX == kPair ? 1 : NX;  // products per column
  static constexpr int kTokenTiles = NX == kPair && NT > 1 ? NT / 2 : NT;
  int offset[NT];  // of the lane's column in each n-tile
  int half, part;  // strides
  bool active;     // NT = 1: the lane has a token; values in other lanes only affect unused columns

  __device__ __forceinline__ Inputs(int num_tokens, int lane) {
    const int rows = NX == kPair ? 2 * num_tokens : num_tokens;
    asm volatile("mov.u32 %0, %1;" : "=r"(half) : "r"(rows * 64));  // kept in a register
    part = 2 * half;
    const int g = lane / 4, token = NX == kPair && NT == 1 ? g % 4 : g;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const bool second = NX == kPair && (NT == 1 ? g >= 4 : n >= kTokenTiles);
      offset[n] = (min(8 * (n % kTokenTiles) + token, num_tokens - 1) + (second ? num_tokens : 0)) * 64 + lane % 4 * 16;
    }
    active = token < num_tokens;
  }
  __device__ __forceinline__ int tile() const { return kParts * part; }

  // Adds both terms' sums. NT = 1: the result is in the lanes of the first terms.
  __device__ __forceinline__ static void Join(const float (&acc)[NT][4], float (&sum)[kTokenTiles][4]) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (NX != kPair) {
          sum[n][j] = acc[n][j];
        } else if constexpr (NT == 1) {
          sum[n][j] = acc[n][j] + __shfl_xor_sync(0xFFFFFFFFu, acc[n][j], 2);
        } else {
          sum[n][j] = acc[n][j] + acc[n + kTokenTiles][j];
        }
      }
    }
  }
};

// acc += tile (16 x 64) * x
template <WeightFormat F, int NT, int NX>
__device__ __forceinline__ void MultiplyTile(const uint8_t* tile, int lane, const uint8_t* x,
                                             const Inputs<NT, NX>& inputs, float scale, uint4 (&b)[2],
                                             float (&acc)[NT][4]) {
  uint32_t a[4][4];
  DecodeTile<F>(LoadTile<F>(tile, lane), a);
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    float sum[4] = {};
    float(&d)[4] = HasScalesBeside(F) ? sum : acc[n];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int part = 0; part < Inputs<NT, NX>::kParts; ++part) {
        const uint4* from = reinterpret_cast<const uint4*>(x + part * inputs.part + half * inputs.half +
                                                           inputs.offset[n]);
        if (NT > 1 || inputs.active) b[half] = *from;
        MmaBf16(d, a[2 * half], b[half].x, b[half].y);
        MmaBf16(d, a[2 * half + 1], b[half].z, b[half].w);
      }
    }
    if constexpr (HasScalesBeside(F)) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[n][i] = fmaf(scale, sum[i], acc[n][i]);
    }
  }
}

// Multiplies a chunk: even tiles into acc[0], odd tiles into acc[1], two at a time.
template <WeightFormat F, int NT, int NX>
__device__ __forceinline__ void MultiplyChunk(const uint8_t* tile, int count, int lane, const uint8_t* x,
                                              const Inputs<NT, NX>& inputs, const ItemScales& scales, int scale_tile,
                                              uint4 (&b)[2][2], float (&acc)[2][NT][4]) {
  constexpr int kTile = static_cast<int>(TileBytes(F));
  float scale[2] = {1, 1};
  if constexpr (TilesOfChunk(F) == 4 && NT <= 2 && NX == kPair) {  // a whole chunk
    if (count == 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        MultiplyTile<F, NT, NX>(tile + i * kTile, lane, x + i * inputs.tile(), inputs, 1, b[i % 2], acc[i % 2]);
      return;
    }
  }
#pragma unroll 1
  for (; count >= 2; count -= 2) {
    if constexpr (HasScalesBeside(F)) scale[0] = scales.Of(scale_tile / 2), scale[1] = scales.Of((scale_tile + 1) / 2);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      MultiplyTile<F, NT, NX>(tile + i * kTile, lane, x + i * inputs.tile(), inputs, scale[i], b[i], acc[i]);
    tile += 2 * kTile;
    x += 2 * inputs.tile();
    scale_tile += 2;
  }
  if (count > 0) {
    if constexpr (HasScalesBeside(F)) scale[0] = scales.Of(scale_tile / 2);
    MultiplyTile<F, NT, NX>(tile, lane, x, inputs, scale[0], b[0], acc[0]);
  }
}

// 1 / RMS of a row, in lane 0; by a warp. The order of the sum depends on K only.
__device__ __forceinline__ float RowScale(const float* x, int cols, float eps, int lane) {
  const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0 && cols % 4 == 0;
  float square = 0;
#pragma unroll 8
  for (int i = 4 * lane; i < cols; i += 128) {
    float4 v;
    if (aligned) {
      v = *reinterpret_cast<const float4*>(x + i);
    } else {
      v = {x[i], i + 1 < cols ? x[i + 1] : 0.0f, i + 2 < cols ? x[i + 2] : 0.0f, i + 3 < cols ? x[i + 3] : 0.0f};
    }
    square = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, square))));
  }
  return rsqrtf(WarpSum(square) / static_cast<float>(cols) + eps);
}

// RowScale for every token: one warp per token. The last warps come first, because they have the least to stage.
__device__ __forceinline__ void RowScales(const Params& p, float* scales) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int token = kWarps - 1 - static_cast<int>(threadIdx.x) / 32; token < p.num_tokens; token += kWarps) {
    const float scale = RowScale(p.x + token * p.x_stride, p.cols, p.norm_eps, lane);
    if (lane == 0) scales[token] = scale;
  }
}

// Writes columns [first, first + 64 tiles) of x, times the norm's weights if there is one, to shared memory as B
// fragments, tile by tile.
template <int NX>
__device__ __forceinline__ void StageInputs(const Params& p, int group, int first, int tiles, uint8_t* shared) {
  const int octets = tiles * 8, total = p.num_tokens * octets;
  const bool aligned = (reinterpret_cast<uintptr_t>(p.x) | static_cast<uintptr_t>(p.x_stride * 4) |
                        static_cast<uintptr_t>(p.cols * 4)) %
                           16 ==
                       0;
  // Loads eight numbers from `from`, which is column k.
  const auto load = [&](const float* from, int k, bool by_four, float(&v)[8]) {
    if (by_four && k + 8 <= p.cols) {
      const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
      v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w, v[4] = high.x, v[5] = high.y, v[6] = high.z,
      v[7] = high.w;
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = k + j < p.cols ? from[j] : 0.0f;
    }
  };
#pragma unroll 2
  for (int i = threadIdx.x; i < total; i += kThreads) {
    const int token = p.num_tokens == 1 ? 0 : i / octets, octet = i - token * octets, k = first + 8 * octet;
    float v[8];
    load(p.x + token * p.x_stride + static_cast<int64_t>(group) * p.cols + k, k, aligned, v);
    if (p.norm != nullptr) {
      float weight[8];
      load(p.norm + k, k, reinterpret_cast<uintptr_t>(p.norm) % 16 == 0, weight);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] *= weight[j];
    }
    const int tile = octet / 8, t = octet % 8 / 2, half = octet % 2;
    if constexpr (NX == kPair) {
      uint8_t* out = shared + ((tile * 2 + half) * 2 * p.num_tokens + token) * 64 + t * 16;
      const Bf16Pairs w[4] = {SplitPairs(v[0], v[1]), SplitPairs(v[2], v[3]), SplitPairs(v[4], v[5]),
                              SplitPairs(v[6], v[7])};
      *reinterpret_cast<uint4*>(out) = make_uint4(w[0].hi, w[1].hi, w[2].hi, w[3].hi);
      *reinterpret_cast<uint4*>(out + p.num_tokens * 64) = make_uint4(w[0].lo, w[1].lo, w[2].lo, w[3].lo);
    } else {
      uint8_t* out = shared + ((tile * NX * 2 + half) * p.num_tokens + token) * 64 + t * 16;
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
        *reinterpret_cast<uint4*>(out + part * p.num_tokens * 128) = make_uint4(words[part][0], words[part][1],
                                                                                words[part][2], words[part][3]);
      }
    }
  }
}

__device__ __forceinline__ float4 operator+(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Sum of `count` (1, 2, 4 or 8) terms as a balanced tree, so that the sum of Q segments has the same bits if blocks or
// warps divide it.
__device__ __forceinline__ float4 TreeSum(const float4* terms, int stride, int count) {
  float4 sum = terms[0];
  if (count >= 2) sum = sum + terms[stride];
  if (count >= 4) sum = sum + (terms[2 * stride] + terms[3 * stride]);
  if (count >= 8) sum = sum + ((terms[4 * stride] + terms[5 * stride]) + (terms[6 * stride] + terms[7 * stride]));
  return sum;
}

// Partial sums of a range, [part][token][row], and the received sums of this block's rows, [token][row quad / S][slice]
// float4: row quads go round the blocks of the cluster.
struct Exchange {
  float* partials;
  float4* received;
  uint32_t barrier;

  __host__ __device__ __forceinline__ static constexpr int Stride(int items) { return StrideOfSums(items); }
  __host__ __device__ __forceinline__ static int Quads(int items, int slices) {
    return (4 * items + slices - 1) / slices;
  }
};

inline BlockShape BlockShapeOf(const Params& p) { return {p.tile_cols, p.max_items, p.log_segments, p.log_slices}; }

// Bytes of shared memory of a launch whose warps have rings of `slots` slots.
inline size_t SharedBytes(const Params& p, int num_tokens, int nx, int slots) {
  return SharedBytes(BlockShapeOf(p), num_tokens, nx, slots);
}

// With this much shared memory a multiprocessor runs only one block. Otherwise two blocks of a grid that has one per
// multiprocessor may share one (they do if the previous kernel leaves early), and the step waits for them.
constexpr size_t kOneBlock = 116 * 1024;

// Launches with as many columns as the tokens need. Each format has its own translation unit.
template <WeightFormat F>
void LaunchFormat(const ExecContext& ctx, const Params& p);
// For a few tokens and a matrix with Pushes: also sends y to the other ranks.
template <WeightFormat F>
void LaunchPushing(const ExecContext& ctx, const Params& p, int64_t site);
void LaunchExact(const ExecContext& ctx, const Params& p);  // three terms of x, any format
int MaxClusters(const ExecContext& ctx, int slices);

}  // namespace dsv4::tile_linear
