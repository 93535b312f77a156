// The rows of a pass that are a rank's own, if ranks divide the rows.
#pragma once

#include "device/exchange.h"
#include "device/exec_context.h"

namespace dsv4 {

inline constexpr int64_t kShareRows = 8;  // shares begin at whole blocks of FP16 rows (ops/activation_blocks.cuh)

// The own rows of `num_rows`; all rows if there is one rank.
inline RankShare RowsOfRank(const ExecContext& ctx, int64_t num_rows) {
  return ctx.ranks == nullptr ? RankShare{0, num_rows}
                              : ShareOf(num_rows, ctx.ranks->rank, ctx.ranks->count, kShareRows);
}

}  // namespace dsv4
