// y[t, d] = sum over ranks r of y_r[t, d], the same bits on every rank. One rank: y as it is.
// float32, added as a balanced tree over ranks, ((0+1)+(2+3))+((4+5)+(6+7)): the top of the tree in which a product
// sums its columns, so that cutting those among ranks changes nothing (docs/several-gpus.md). An element's sum depends
// on nothing else: not on T, not on how the parts travel. When the exchange has failed, y is unspecified and nobody
// waits.
#pragma once

#include <algorithm>

#include "ops/rank_rows.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct SumRanksArgs {
  Tensor y;               // f32 [T, D]: this rank's part, then the sum; the same shape on every rank
  int64_t site = 0;       // which of the pass's exchanges this is; takes SumExchanges(ctx, args) numbers from here on
  bool own_rows = false;  // only the rank's own rows (ops/rank_rows.h) are asked for; the others hold anything then
};
void SumRanks(const ExecContext& ctx, const SumRanksArgs& args);
OpImplementations DescribeSumRanks(const ExecContext& ctx);

// Exchanges that a payload of so many float32 values takes as words: pieces, where it is larger than the ranks' memory
// for it.
inline int64_t RankExchanges(const ExecContext& ctx, int64_t elements) {
  if (ctx.ranks == nullptr || ctx.ranks->count == 1 || elements == 0) return 0;
  const int64_t room = ctx.ranks->memory.elements;
  return room == 0 ? 1 : (elements + room - 1) / room;
}

// What does not fit as words travels as arrays, where the exchange has memory for those: each rank adds one share of
// the elements for all, then, unless own rows are enough, all get the sums. The same bits. With more than two ranks
// large sums that do fit, too: a word for every peer is more bytes then (bench/notes/ranks.md, "Four GPUs").
inline constexpr int64_t kFewWords = int64_t{80} * 4096;
inline bool SumsInBulk(const ExecContext& ctx, int64_t elements) {
  const ExchangeMemory& m = ctx.ranks->memory;
  const int64_t words = ctx.ranks->count > 2 ? std::min(m.elements, kFewWords) : m.elements;
  return m.bulk_floats > 0 && elements > words && elements % 4 == 0;
}
// The shares of a sum as arrays: units of y and their grain, floats of a unit.
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
