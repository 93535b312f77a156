// y[r, p*C + c] = x_p[r, c] for every rank p: columns that the ranks made are put side by side, on every rank. Exact.
// One rank: y = x. When the exchange has failed, y is unspecified and nobody waits.
#pragma once

#include "device/exchange.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct GatherRanksArgs {
  Tensor x;          // f32 [R, C]: this rank's columns; the same shape on every rank
  Tensor y;          // f32 [R, count * C]; not x, but on one rank it may be
  int64_t site = 0;  // takes RankExchanges(ctx, elements of x) numbers (sum_ranks.h)
};
void GatherRanks(const ExecContext& ctx, const GatherRanksArgs& args);
OpImplementations DescribeGatherRanks(const ExecContext& ctx);

}  // namespace dsv4
