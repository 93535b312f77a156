// y[t, d] = sum over ranks r of y_r[t, d], the same bits on every rank. One rank: y as it is.
// float32, added as a balanced tree over ranks, ((0+1)+(2+3))+((4+5)+(6+7)): the top of the tree in which a product
// sums its columns, so that cutting those among ranks changes nothing (docs/multigpu.md). An element's sum depends on
// nothing else: not on T, not on how the parts travel. When the exchange has failed, y is unspecified and nobody waits.
#pragma once

#include "device/exchange.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct SumRanksArgs {
  Tensor y;          // f32 [T, D]: this rank's part, then the sum; the same shape on every rank
  // which of the pass's exchanges this is; takes SumExchanges(ctx, elements of y) numbers from here on
  int64_t site = 0;
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
// the elements for all, then all get the sums. The same bits.
inline bool SumsInBulk(const ExecContext& ctx, int64_t elements) {
  const ExchangeMemory& m = ctx.ranks->memory;
  return m.bulk_floats > 0 && elements > m.elements && elements % 4 == 0;
}
inline int64_t SumExchanges(const ExecContext& ctx, int64_t elements) {
  const int64_t words = RankExchanges(ctx, elements);
  if (words == 0 || !SumsInBulk(ctx, elements)) return words;
  return 2 * BulkExchanges(ctx.ranks->memory, LongestShare(elements, ctx.ranks->count, kBulkChunk));
}

}  // namespace dsv4
