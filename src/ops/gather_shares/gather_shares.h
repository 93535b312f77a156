// y [T, D], of which rank r has made the rows ShareOf(T, r, count, kShareRows); afterwards every rank has all of them.
// Exact. One rank: nothing to do. When the exchange has failed, y is unspecified and nobody waits.
#pragma once

#include "device/exchange.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

inline constexpr int64_t kShareRows = 8;  // shares begin at whole blocks of FP16 rows (ops/activation_blocks.cuh)

struct GatherSharesArgs {
  Tensor y;          // f32 [T, D]; on a GPU D is a multiple of 4
  int64_t site = 0;  // takes ShareExchanges(ctx, y) numbers from here on
};
void GatherShares(const ExecContext& ctx, const GatherSharesArgs& args);
OpImplementations DescribeGatherShares(const ExecContext& ctx);

// Rows of T that this context's rank makes; all of them where there is one.
inline RankShare RowsOfRank(const ExecContext& ctx, int64_t num_rows) {
  return ctx.ranks == nullptr ? RankShare{0, num_rows}
                              : ShareOf(num_rows, ctx.ranks->rank, ctx.ranks->count, kShareRows);
}

inline int64_t ShareExchanges(const ExecContext& ctx, const Tensor& y) {
  if (ctx.ranks == nullptr || ctx.ranks->count == 1 || y.num_elements() == 0) return 0;
  const int64_t rows = y.dim(0), longest = LongestShare(rows, ctx.ranks->count, kShareRows) * (y.num_elements() / rows);
  const ExchangeMemory& m = ctx.ranks->memory;
  if (m.bulk_floats > 0) return BulkExchanges(m, longest);
  return m.elements == 0 ? 1 : (longest + m.elements - 1) / m.elements;
}

}  // namespace dsv4
