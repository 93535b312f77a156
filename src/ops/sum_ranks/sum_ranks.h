// y[t, d] = sum over ranks r of y_r[t, d], the same bits on every rank: an all-reduce. One rank: y is unchanged.
// float32, added as a balanced tree over ranks, ((0+1)+(2+3))+((4+5)+(6+7)): the top of the tree in which a product
// sums its columns, so that dividing the columns among ranks changes no bit (docs/several-gpus.md). An element's sum
// depends on nothing else: not on T, not on the transport. After a failure of the exchange y is unspecified and no rank
// waits.
#pragma once

#include <algorithm>

#include "ops/rank_rows.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct SumRanksArgs {
  Tensor y;               // f32 [T, D]: this rank's partial, then the sum; the same shape on every rank
  int64_t site = 0;       // the first of SumExchanges(ctx, args) collective numbers of the pass
  bool own_rows = false;  // reduce-scatter: sums for the rank's own rows (ops/rank_rows.h) only, others unspecified
};
void SumRanks(const ExecContext& ctx, const SumRanksArgs& args);
OpImplementations DescribeSumRanks(const ExecContext& ctx);

// The number of collectives for `elements` float32 values sent as words: one per piece if they exceed the ranks' memory
// for words.
inline int64_t RankExchanges(const ExecContext& ctx, int64_t elements) {
  if (ctx.ranks == nullptr || ctx.ranks->count == 1 || elements == 0) return 0;
  const int64_t room = ctx.ranks->memory.elements;
  return room == 0 ? 1 : (elements + room - 1) / room;
}

// Payloads that do not fit as words travel as arrays, if the exchange has memory for arrays. Each rank adds one share
// of the elements for all ranks. Then, unless own rows are enough, all ranks get the sums. The bits are the same. With
// more than two ranks large sums that would fit also travel as arrays, because one word per peer is more bytes
// (bench/notes/ranks.md, "Four GPUs").
inline constexpr int64_t kFewWords = int64_t{80} * 4096;
inline bool SumsInBulk(const ExecContext& ctx, int64_t elements) {
  const ExchangeMemory& m = ctx.ranks->memory;
  const int64_t words = ctx.ranks->count > 2 ? std::min(m.elements, kFewWords) : m.elements;
  return m.bulk_floats > 0 && elements > words && elements % 4 == 0;
}
// The shares of a sum that travels as arrays: the units of y, their grain, and the floats of a unit.
struct SumShares {
  int64_t units, grain, unit;
};
inline SumShares SharesOf(const SumRanksArgs& a) {
  if (!a.own_rows) return {a.y.num_elements(), kBulkChunk, 1};
  return {a.y.dim(0), kShareRows, a.y.num_elements() / a.y.dim(0)};
}
inline int64_t SumExchanges(const ExecContext& ctx, const SumRanksArgs& a) {
  const int64_t elements = a.y.num_elements(), words = RankExchanges(ctx, elements);
  if (words == 0 || !SumsInBulk(ctx, elements)) return words;
  const SumShares shares = SharesOf(a);
  const int64_t longest = LongestShare(shares.units, ctx.ranks->count, shares.grain) * shares.unit;
  return (a.own_rows ? 1 : 2) * BulkExchanges(ctx.ranks->memory, BulkChunks(longest));
}

}  // namespace dsv4
