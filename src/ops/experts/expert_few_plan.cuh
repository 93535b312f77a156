// The products of ExpertFewKernel (expert_few.cuh): each block lists the chunks itself and selects its items.
#pragma once

#include "ops/experts/expert_stage.cuh"
#include "ops/idle_row.h"

namespace dsv4::experts {

static_assert(kFewMembers == BlockTokens(2));

// An expert and up to kFewMembers of its pairs.
struct FewChunk {
  const uint8_t *codes0, *codes1;
  float scale0, scale1;
  uint8_t pair[kFewMembers];
  uint8_t count;
  bool beside;  // its tiles are of FormatBeside(F)
};
static_assert(sizeof(FewChunk) == kFewChunkBytes);

// The part of the list of row pairs that the host knows. known: the first chunk's expert is known before the launch,
// and each block has a share of its rows. reciprocal: 2^32 / rows, rounded up.
struct FewList {
  int tokens, pairs, rows;
  bool up, known;
  uint32_t reciprocal;
};

// The experts of the pairs.
struct FewPlan {
  int32_t expert[kFewPairs];
  uint32_t leads[2], idle[2];  // bits: the pair is its chunk's first; the pair has no expert
};

// The expert of pair threadIdx.x.
__device__ __forceinline__ int32_t ExpertOfPair(const GemmArgs& a, const FewList& list) {
  const int pair = static_cast<int>(threadIdx.x);
  const int32_t e = pair < list.pairs ? a.experts[pair] : kNoExpert;
  return e == kNoExpert ? kNoExpert : min(max(e, 0), a.num_experts - 1);
}

// Makes the chunks, with the block's first kFewPairs threads: pairs with an expert, grouped by expert, in the order of
// the expert's first pair. Returns their number. Every thread calls it, with the result of ExpertOfPair.
template <WeightFormat F>
__device__ __forceinline__ int PlanFew(const GemmArgs& a, const FewList& list, int32_t expert, FewPlan& plan,
                                       FewChunk* chunks) {
  const int pair = static_cast<int>(threadIdx.x), warp = pair / 32;
  if (pair < kFewPairs) plan.expert[pair] = expert;
  const int32_t mine = pair < kFewPairs ? expert : kNoExpert;
  FewChunk chunk;  // without pairs; the table is read before the other pairs are known
  if (mine != kNoExpert) {
    const ExpertMatrices& m = a.matrices[mine];
    const QuantTensor &one = list.up ? m.gate : m.down, &other = list.up ? m.up : m.down;
    chunk.beside = IsBeside<F>(one);
    chunk.codes0 = one.codes, chunk.codes1 = other.codes;
    chunk.scale0 = SumScale<F>(one.global_scale, chunk.beside);
    chunk.scale1 = SumScale<F>(other.global_scale, chunk.beside);
  }
  __syncthreads();
  int before = 0, same = 0, lead = 0;  // pairs of the same expert: before this one, all; the chunk's first
  if (pair < kFewPairs) {
#pragma unroll 4
    for (int i = 0; i < list.pairs; ++i) {
      if (plan.expert[i] != mine) continue;
      if (i <= pair && same % kFewMembers == 0) lead = i;
      before += i < pair ? 1 : 0;
      ++same;
    }
    const uint32_t leads = __ballot_sync(0xFFFFFFFFu, mine != kNoExpert && lead == pair),
                   idle = __ballot_sync(0xFFFFFFFFu, mine == kNoExpert && pair < list.pairs);
    if (pair % 32 == 0) plan.leads[warp] = leads, plan.idle[warp] = idle;
  }
  __syncthreads();
  const uint32_t first = plan.leads[0], second = plan.leads[1];
  if (mine != kNoExpert) {
    FewChunk& c = chunks[lead < 32 ? __popc(first & ((1u << lead) - 1))
                                   : __popc(first) + __popc(second & ((1u << (lead - 32)) - 1))];
    c.pair[before % kFewMembers] = static_cast<uint8_t>(pair);
    if (lead == pair) {
      c.count = static_cast<uint8_t>(min(same - before, kFewMembers));
      c.beside = chunk.beside;
      c.codes0 = chunk.codes0, c.codes1 = chunk.codes1;
      c.scale0 = chunk.scale0, c.scale1 = chunk.scale1;
    }
  }
  __syncthreads();
  return __popc(first) + __popc(second);
}

// Sets o[t, a] = 0 for the pairs without an expert.
__device__ __forceinline__ void ClearFew(const GemmArgs& a, const FewList& list, const FewPlan& plan) {
  if ((plan.idle[0] | plan.idle[1]) == 0) return;
  for (int pair = 0; pair < list.pairs; ++pair) {
    if (plan.expert[pair] != kNoExpert) continue;
    for (int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); c < a.n;
         c += static_cast<int>(gridDim.x * blockDim.x))
      a.outputs[int64_t{pair} * a.n + c] = 0;
  }
}

// The block's items of the list: of the known chunk [first, first + known), then the items from `rest`.
struct FewItems {
  int first = 0, known = 0, rest = 0, count = 0;
  int rows;
  uint32_t reciprocal;

  __device__ __forceinline__ explicit FewItems(const FewList& list) : rows(list.rows), reciprocal(list.reciprocal) {
    if (!list.known) return;
    const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
    first = rows * block / blocks;
    known = rows * (block + 1) / blocks - first;
  }
  // Requires at least one chunk if one is known.
  __device__ __forceinline__ void Cut(const FewList& list, int num_chunks) {
    const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
    const int total = num_chunks * rows, each = total / blocks, more = total % blocks;
    const int begin = each * block + min(block, more);
    if (!list.known) {
      rest = begin, count = each + (block < more ? 1 : 0);
    } else if (each * blocks >= rows) {  // no block has fewer than its share of the known chunk
      rest = rows + begin - first, count = each + (block < more ? 1 : 0);
    } else {
      const int others = total - rows, each_other = others / blocks, more_others = others % blocks;
      rest = rows + each_other * block + min(block, more_others);
      count = known + each_other + (block < more_others ? 1 : 0);
    }
  }
  struct Place {
    int chunk, row;
  };
  __device__ __forceinline__ Place operator[](int i) const {
    if (i < known) return {0, first + i};
    const int at = rest + i - known, chunk = static_cast<int>(__umulhi(static_cast<uint32_t>(at), reciprocal));
    return {chunk, at - chunk * rows};
  }
};

}  // namespace dsv4::experts
