// The arguments of a launch of expert_gemm.cuh's kernel, and the items of a block: chunks of an expert's tokens, row
// pairs of its matrices.
#pragma once

#include "ops/experts/experts.h"
#include "ops/weight_formats/tile_formats.h"

namespace dsv4::experts {

struct Chunk {
  int32_t expert, begin, count;  // pairs [begin, begin + count) of the sorted list
  int32_t cost;                  // of a row pair, summed over the previous chunks; see ChunkCost
};

// Tokens of a block of eight columns.
__host__ __device__ constexpr int BlockTokens(int planes) { return planes == 2 ? 4 : 8; }

// The cost of a row pair, by which the list is divided. ExpertGemmKernel: kBlocks counts blocks of columns; two blocks
// take two mmas per step instead of one, and fewer loads ahead. kTokens also counts the rows of inputs, for lists in
// which most chunks have one row and a few (the shared expert's) have more. Both were measured
// (bench/notes/experts.md). ExpertManyKernel: kTeams counts teams.
enum class CostBy { kBlocks, kTokens, kTeams };
inline constexpr int kLeastCost = 6;
__host__ __device__ constexpr int ChunkCost(int count, int planes, CostBy by) {
  const bool two = count > BlockTokens(planes);
  if (by == CostBy::kTeams) return two ? 2 : 1;
  return two ? 8 : by == CostBy::kTokens ? kLeastCost - 1 + count : kLeastCost;
}

struct GemmArgs {
  const ExpertMatrices* matrices;
  int num_experts;
  // The chunks: for one token `experts` [A] (chunk i is choice i), else made by PlanKernel.
  const int32_t* experts;
  int num_slots;
  int always = -1;      // one token: the expert of choice 0, if known before the launch
  const int32_t* plan;  // number of chunks, their total cost, 1 if costs differ
  CostBy cost_by;
  const Chunk* chunks;
  const int32_t* pairs;
  // Input rows: BF16 planes [rows, padded K]; for one token its f32 row.
  const uint16_t* planes;
  int64_t plane_elements;
  bool row_is_token;  // row of a pair: pair / num_slots, or pair
  const float* x;
  int k, n;  // n: rows of one matrix
  // Up: hidden activations, as planes [pairs, padded F] or, if they are rounded later, f32 rows with a stride of 2F.
  float limit;
  const float* weights;
  uint16_t* hidden_planes;
  int64_t hidden_plane_elements;
  float* hidden;
  // Down.
  float* outputs;   // [pairs, n]
  uint64_t policy;  // of L2 for the weights
};

// Prefetches the table of matrices to L2, by the whole grid, because it is cold. It is constant, so this needs no wait.
template <int kThreads>
__device__ __forceinline__ void PrefetchMatrices(const GemmArgs& a) {
  const uint8_t* table = reinterpret_cast<const uint8_t*>(a.matrices);
  const int bytes = a.num_experts * static_cast<int>(sizeof(ExpertMatrices));
  for (int at = (blockIdx.x * kThreads + threadIdx.x) * 64; at < bytes; at += gridDim.x * kThreads * 64) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(table + at));
  }
}

// A lane holds the chunk `first + lane`; it gets the others by shuffles.
struct ChunkCache {
  int first;
  Chunk chunk;
  const uint8_t *codes0, *codes1;
  float scale0, scale1;
  bool beside;  // its tiles are of FormatBeside(F)
};

template <WeightFormat F>
__device__ __forceinline__ bool IsBeside(const QuantTensor& w) {
  return HasFormatBeside(F) && w.format != F;
}
// The factor of sums of products with a matrix.
template <WeightFormat F>
__device__ __forceinline__ float SumScale(float global_scale, bool beside) {
  return global_scale * (HasFormatBeside(F) && beside ? MmaFactor(FormatBeside(F)) : MmaFactor(F));
}

template <WeightFormat F, bool Up>
__device__ __forceinline__ void FillCache(const GemmArgs& a, int first, int num_chunks, int lane, ChunkCache& c) {
  c.first = first;
  const int i = first + lane;
  c.chunk = {0, 0, 0, 0};
  c.codes0 = c.codes1 = nullptr;
  c.scale0 = c.scale1 = 0;
  c.beside = false;
  if (i >= num_chunks) return;
  if (a.experts != nullptr) {
    c.chunk = {a.experts[i], i, 1, kLeastCost * i};
    c.chunk.expert = min(max(c.chunk.expert, 0), a.num_experts - 1);
  } else {
    c.chunk = a.chunks[i];
  }
  const ExpertMatrices& m = a.matrices[c.chunk.expert];
  c.codes0 = Up ? m.gate.codes : m.down.codes;
  c.codes1 = Up ? m.up.codes : m.down.codes;
  c.scale0 = Up ? m.gate.global_scale : m.down.global_scale;
  c.scale1 = Up ? m.up.global_scale : m.down.global_scale;
  c.beside = IsBeside<F>(Up ? m.gate : m.down);
}

__device__ __forceinline__ const uint8_t* ShufflePointer(const uint8_t* p, int lane) {
  return reinterpret_cast<const uint8_t*>(__shfl_sync(0xFFFFFFFFu, reinterpret_cast<unsigned long long>(p), lane));
}

// A position in a block's items, in the order of the list.
struct Cursor {
  int chunk, row;
  __device__ __forceinline__ void Next(int rows) {
    if (++row == rows) row = 0, ++chunk;
  }
};

// The first row pair at or after position `at` of the costs; called by all lanes of a warp.
template <int Planes>
__device__ __forceinline__ Cursor Locate(const GemmArgs& a, int num_chunks, int rows, unsigned at, int lane) {
  const Chunk* chunks = a.chunks;
  int low = 0, size = num_chunks;  // the chunk is in [low, low + size)
  while (size > 1) {
    const int step = (size + 31) / 32, i = low + lane * step;
    const bool before = lane * step < size && static_cast<unsigned>(chunks[i].cost) * static_cast<unsigned>(rows) <= at;
    const int last = max(__popc(__ballot_sync(0xFFFFFFFFu, before)) - 1, 0);
    const int end = low + size;
    low += last * step;
    size = min(step, end - low);
  }
  const Chunk c = chunks[low];
  const unsigned cost = static_cast<unsigned>(ChunkCost(c.count, Planes, a.cost_by)),
                 start = static_cast<unsigned>(c.cost) * static_cast<unsigned>(rows);
  Cursor cursor{low, static_cast<int>((at - start + cost - 1) / cost)};
  if (cursor.row >= rows) cursor = {low + 1, 0};
  return cursor;
}

}  // namespace dsv4::experts
