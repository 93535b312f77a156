// y[r, p*C + c] = x_p[r, c] for every rank p, on every rank: an all-gather of columns. Exact. One rank: y = x. After a
// failure of the exchange y is unspecified and no rank waits.
#pragma once

#include "device/exchange.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct GatherRanksArgs {
  Tensor x;          // f32 [R, C]: this rank's columns; the same shape on every rank
  Tensor y;          // f32 [R, count * C]; not x, except on one rank
  int64_t site = 0;  // the first of RankExchanges(ctx, elements of x) collective numbers (sum_ranks.h)
};
void GatherRanks(const ExecContext& ctx, const GatherRanksArgs& args);
OpImplementations DescribeGatherRanks(const ExecContext& ctx);

}  // namespace dsv4
