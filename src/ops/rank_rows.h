// Which of a pass's rows are a rank's own, where ranks have rows and not parts of all.
#pragma once

#include "device/exchange.h"
#include "device/exec_context.h"

namespace dsv4 {

inline constexpr int64_t kShareRows = 8;  // shares begin at whole blocks of FP16 rows (ops/activation_blocks.cuh)

// Of `num_rows`; all of them where there is one rank.
inline RankShare RowsOfRank(const ExecContext& ctx, int64_t num_rows) {
  return ctx.ranks == nullptr ? RankShare{0, num_rows}
                              : ShareOf(num_rows, ctx.ranks->rank, ctx.ranks->count, kShareRows);
}

}  // namespace dsv4
