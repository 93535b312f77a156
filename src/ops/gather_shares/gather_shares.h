// All-gathers rows: rank r has computed the rows ShareOf(T, r, count, kShareRows) of each value; afterwards every rank
// has all T rows. Exact. One rank: does nothing. After a failure of the exchange the other ranks' rows are unspecified
// and no rank waits.
#pragma once

#include <array>

#include "base/check.h"
#include "ops/rank_rows.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

// A value as the exchange sees it: runs of float32 (or other data in the same bytes). Unit u of column c is at
//   all + (c * units + u) * unit
// This rank's units are contiguous at `own`, column by column.
struct SharedValue {
  const float* own = nullptr;
  float* all = nullptr;
  int64_t units = 0;  // rows; for FP16 blocks: blocks of 8 rows
  int64_t grain = 0;  // a share is a multiple of this many units
  int64_t unit = 0;   // floats
  int64_t columns = 1;

  RankShare ShareOfRank(int rank, int count) const { return ShareOf(units, rank, count, grain); }
  bool in_place() const { return columns == 1; }
};

struct GatherSharesArgs {
  static constexpr int kMost = 6;

  int64_t site = 0;  // the first of ShareExchanges(ctx, args) collective numbers
  std::array<SharedValue, kMost> values = {};
  int num_values = 0;
  bool sent = false;  // this rank's rows are in flight (SendShares)

  // y [T, ...] of 4-byte elements; this rank's rows are at their final positions. Empty tensors are ignored.
  void AddRows(const ExecContext& ctx, const Tensor& y);
  // FP16 blocks (ops/activation_blocks.cuh) of D columns, a multiple of 64. `own` holds this rank's rows only, `all`
  // all T.
  void AddBlocks(const uint8_t* own, uint8_t* all, int64_t num_rows, int64_t d);
};
void GatherShares(const ExecContext& ctx, const GatherSharesArgs& args);

// Sends this rank's rows early, while the work runs that is queued before GatherShares is called with the same args.
// Sets `sent` if it sends: only if there are links (kWords) and enough data to pay. Every rank decides the same. `own`
// must not change until GatherShares. After two sends have been gathered, another collective must come before the next
// SendShares. Not for recorded work.
void SendShares(const ExecContext& ctx, GatherSharesArgs& args);
OpImplementations DescribeGatherShares(const ExecContext& ctx);

// 0 if `sent`: early sends have their own count.
int64_t ShareExchanges(const ExecContext& ctx, const GatherSharesArgs& args);

}  // namespace dsv4
