// Pairs of a token and an expert, sorted by expert, and activations in that order: kernels of experts_sm90.cu.
#pragma once

#include "device/launch.cuh"
#include "ops/gemm_sm90.cuh"

namespace dsv4::sm90 {

namespace {

constexpr int kSortThreads = 1024;  // also the pairs of a sorting block, and the most experts

// Up to 256 sorted rows of one expert, 128 if activations have two terms. Tiles are in classes by the width of the
// instruction that they need, wide ones first. Each class has its own kernel, because one kernel with all widths is too
// much for the compiler's register allocation.
struct ExpertTile {
  int expert, row0, count;  // row0: a multiple of 8
};
constexpr int kNumWidths = 6;
__host__ __device__ constexpr int Width(int c) {
  constexpr int kWidths[kNumWidths] = {256, 224, 192, 128, 64, 32};
  return kWidths[c];
}

struct Totals {
  int rows;                   // of all groups
  int begin;                  // the group's first tile in `tiles`
  int class_end[kNumWidths];  // ends of the classes in `tiles`
};

// Pairs sorted by expert. An expert's rows begin at a multiple of 8; the rows between are empty (-1).
struct Sorted {
  int* histogram;  // [sorting blocks, E]: numbers of pairs, then the first row of the block's pairs
  Totals* totals;  // [groups of experts]
  ExpertTile* tiles;
  int* pair;      // [rows]
  int* row;       // [pairs]: of the pair
  float* weight;  // [rows]: of the pair; 0 for none
};

__device__ __forceinline__ int ExpertOf(const int* experts, int pair, int num_experts) {
  return min(max(experts[pair], 0), num_experts - 1);
}

__global__ void __launch_bounds__(kSortThreads)
    CountKernel(const int* experts, Sorted s, int num_pairs, int num_experts) {
  __shared__ int count[kSortThreads];
  const int i = static_cast<int>(threadIdx.x), pair = static_cast<int>(blockIdx.x) * kSortThreads + i;
  AllowNext();
  count[i] = 0;
  __syncthreads();
  WaitForPrevious();
  if (pair < num_pairs) atomicAdd(&count[ExpertOf(experts, pair, num_experts)], 1);
  __syncthreads();
  if (i < num_experts) s.histogram[static_cast<int>(blockIdx.x) * num_experts + i] = count[i];
}

// Inclusive sum over a block of 1024 threads.
__device__ __forceinline__ int BlockScan(int value, int* warp_sums) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(~0u, value, d);
    if (lane >= d) value += other;
  }
  if (lane == 31) warp_sums[warp] = value;
  __syncthreads();
  if (warp == 0) {
    int sum = warp_sums[lane];
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    warp_sums[lane] = sum;
  }
  __syncthreads();
  if (warp > 0) value += warp_sums[warp - 1];
  __syncthreads();
  return value;
}

// The value of the block's last thread.
__device__ __forceinline__ int BlockBroadcastLast(int value, int* shared) {
  if (threadIdx.x == kSortThreads - 1) shared[0] = value;
  __syncthreads();
  value = shared[0];
  __syncthreads();
  return value;
}

// One block, one thread per expert. group_of [num_experts]: the groups in which they are multiplied; null: one group.
__global__ void __launch_bounds__(kSortThreads)
    PlaceKernel(Sorted s, int num_blocks, int num_experts, int most_tokens, const int* group_of, int num_groups) {
  __shared__ int warp_sums[32];
  AllowNext();
  WaitForPrevious();
  const int e = static_cast<int>(threadIdx.x);
  int count = 0;
  if (e < num_experts) {
#pragma unroll 8
    for (int b = 0; b < num_blocks; ++b) count += s.histogram[b * num_experts + e];
  }
  const int padded = (count + 7) / 8 * 8, num_tiles = (count + most_tokens - 1) / most_tokens;
  const int each = num_tiles == 0 ? 0 : ((count + num_tiles - 1) / num_tiles + 7) / 8 * 8;
  const int rows_end = BlockScan(padded, warp_sums);
  if (e == kSortThreads - 1) s.totals->rows = rows_end;
  const int group = e < num_experts && group_of != nullptr ? group_of[e] : 0;
  int tile = 0, class_begin = 0;
  for (int g = 0; g < num_groups; ++g) {
    if (e == kSortThreads - 1) s.totals[g].begin = class_begin;
#pragma unroll
    for (int c = 0; c < kNumWidths; ++c) {
      const bool mine = group == g && each <= Width(c) &&
                        (c + 1 == kNumWidths || each > Width(min(c + 1, kNumWidths - 1)));
      const int end = BlockScan(mine ? num_tiles : 0, warp_sums);
      if (mine) tile = class_begin + end - num_tiles;
      if (e == kSortThreads - 1) s.totals[g].class_end[c] = class_begin + end;
      class_begin += BlockBroadcastLast(end, warp_sums);
    }
  }
  if (e >= num_experts) return;
  const int row0 = rows_end - padded;
  int row = row0;
  for (int b = 0; b < num_blocks; ++b) {
    int& h = s.histogram[b * num_experts + e];
    const int in_block = h;
    h = row;
    row += in_block;
  }
  for (; row < rows_end; ++row) s.pair[row] = -1, s.weight[row] = 0;
  for (int i = 0; i < num_tiles; ++i) {
    const int begin = i * each;
    s.tiles[tile + i] = {e, row0 + begin, min(each, count - begin)};
  }
}

__global__ void __launch_bounds__(kSortThreads)
    ScatterKernel(const int* experts, const float* weights, Sorted s, int num_pairs, int num_experts) {
  extern __shared__ uint8_t memory[];
  uint8_t* count = memory;  // [32 warps][E]
  const int i = static_cast<int>(threadIdx.x), warp = i / 32, pair = static_cast<int>(blockIdx.x) * kSortThreads + i;
  AllowNext();
  for (int j = i; j < 32 * num_experts; j += kSortThreads) count[j] = 0;
  __syncthreads();
  WaitForPrevious();
  const int e = pair < num_pairs ? ExpertOf(experts, pair, num_experts) : -1;
  const unsigned same = __match_any_sync(~0u, e), before = same & ((1u << (i % 32)) - 1);
  if (e >= 0 && before == 0) count[warp * num_experts + e] = static_cast<uint8_t>(__popc(same));
  __syncthreads();
  if (e < 0) return;
  int rank = __popc(before);
  for (int w = 0; w < warp; ++w) rank += count[w * num_experts + e];
  const int row = s.histogram[static_cast<int>(blockIdx.x) * num_experts + e] + rank;
  s.pair[row] = pair;
  s.row[pair] = row;
  s.weight[row] = weights[pair];
}

// Clears the rows without a pair; warps first, first + stride, ... clear 32 rows each.
__device__ __forceinline__ void ClearEmptyRows(const Sorted& s, uint8_t* out, int64_t first, int64_t stride,
                                               int columns, int row_blocks8) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int64_t i = first; i * 32 < s.totals->rows; i += stride) {
    const int mine = static_cast<int>(i) * 32 + lane;
    unsigned empty = __ballot_sync(~0u, mine < s.totals->rows && s.pair[mine] < 0);
    for (; empty != 0; empty &= empty - 1) {
      const int row = static_cast<int>(i) * 32 + __ffs(static_cast<int>(empty)) - 1;
      for (int j = lane; j < columns * 8; j += 32) {
        uint8_t* line = out + BlockBegin(j / 8, row_blocks8, row / 8) + row % 8 * 128;
        reinterpret_cast<uint4*>(line)[j % 8] = uint4{};
      }
    }
  }
}

// Writes x as blocks of activations in sorted order: reads each x once and writes it to the rows of its token's pairs.
// A warp has 8 tokens x 64 columns.
template <bool kHalf>
__global__ void __launch_bounds__(256) SpreadKernel(const float* x, Sorted s, uint8_t* out, int num_tokens, int picked,
                                                    int d, int slabs, int parts, int row_blocks8, bool aligned) {
  AllowNext();
  WaitForPrevious();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * 8 + threadIdx.x / 32,
                stride = static_cast<int64_t>(gridDim.x) * 8;
  const int64_t count = static_cast<int64_t>((num_tokens + 7) / 8) * slabs;
  for (int64_t i = first; i < count; i += stride) {
    const int slab = static_cast<int>(i % slabs), token = static_cast<int>(i / slabs) * 8 + lane / 4;
    if (token >= num_tokens) continue;  // all lanes of the row
    BlockValues values;
    values.Load(x + static_cast<int64_t>(token) * d + slab * 64, d - slab * 64, aligned);
    for (int part = 0; part < parts; ++part) {
      const PackedBlockValues packed = values.Packed<kHalf>();
      for (int a = 0; a < picked; ++a) {
        const int row = s.row[static_cast<int64_t>(token) * picked + a];
        packed.Store(out + BlockBegin(static_cast<int64_t>(slab) * parts + part, row_blocks8, row / 8), row % 8);
      }
      if (parts > 1) values.KeepRest<kHalf>();
    }
  }
  ClearEmptyRows(s, out, first, stride, slabs * parts, row_blocks8);
}

// The same from x as FP16 in blocks: a token's 128 bytes of a block go to the rows of its pairs, 16 bytes per lane,
// from the swizzle of one row to that of another. A warp has a block row of 8 tokens and kSpreadSlabs columns of
// blocks.
constexpr int kSpreadSlabs = 4;
__global__ void __launch_bounds__(256) SpreadBlocksKernel(const uint8_t* x, Sorted s, uint8_t* out, int num_tokens,
                                                          int picked, int slabs, int row_blocks8) {
  AllowNext();
  WaitForPrevious();
  const int lane = static_cast<int>(threadIdx.x % 32), token_blocks8 = (num_tokens + 7) / 8,
            groups = (slabs + kSpreadSlabs - 1) / kSpreadSlabs;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * 8 + threadIdx.x / 32,
                stride = static_cast<int64_t>(gridDim.x) * 8;
  const int64_t count = static_cast<int64_t>(token_blocks8) * groups;
  for (int64_t i = first; i < count; i += stride) {
    const int block8 = static_cast<int>(i / groups), slab0 = static_cast<int>(i % groups) * kSpreadSlabs;
    uint4 v[kSpreadSlabs][2];  // of tokens lane / 8 and 4 + lane / 8
#pragma unroll
    for (int k = 0; k < kSpreadSlabs; ++k) {
      if (slab0 + k >= slabs) continue;
      const uint4* from = reinterpret_cast<const uint4*>(x + BlockBegin(slab0 + k, token_blocks8, block8)) + lane;
      v[k][0] = __ldcg(from), v[k][1] = __ldcg(from + 32);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = 4 * half + lane / 8, token = 8 * block8 + r;
      if (token >= num_tokens) continue;
      for (int a = 0; a < picked; ++a) {
        const int row = s.row[static_cast<int64_t>(token) * picked + a];
        uint8_t* to = out + BlockBegin(slab0, row_blocks8, row / 8) + row % 8 * 128 + ((lane ^ r ^ row) % 8) * 16;
#pragma unroll
        for (int k = 0; k < kSpreadSlabs; ++k) {
          if (slab0 + k < slabs) *reinterpret_cast<uint4*>(to + BlockBegin(k, row_blocks8, 0)) = v[k][half];
        }
      }
    }
  }
  ClearEmptyRows(s, out, first, stride, slabs, row_blocks8);
}

}  // namespace

}  // namespace dsv4::sm90
