// Values of T rows, of which rank r has made the rows ShareOf(T, r, count, kShareRows); afterwards every rank has all
// of them. Exact. One rank: nothing to do. When the exchange has failed, the others' rows are unspecified and nobody
// waits.
#pragma once

#include <array>

#include "base/check.h"
#include "ops/rank_rows.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

// A value as an exchange sees it: runs of float32 (or as many bytes). Unit u of column c lies at
// all + (c * units + u) * unit; this rank's units lie behind each other at `own`, column by column.
struct SharedValue {
  const float* own = nullptr;
  float* all = nullptr;
  int64_t units = 0;  // rows; of FP16 blocks, blocks of 8 rows
  int64_t grain = 0;  // units that a share is a multiple of
  int64_t unit = 0;   // floats
  int64_t columns = 1;

  RankShare ShareOfRank(int rank, int count) const { return ShareOf(units, rank, count, grain); }
  bool in_place() const { return columns == 1; }
};

struct GatherSharesArgs {
  static constexpr int kMost = 6;

  int64_t site = 0;  // takes ShareExchanges(ctx, args) numbers from here on
  std::array<SharedValue, kMost> values = {};
  int num_values = 0;
  bool sent = false;  // this rank's rows are on their way (SendShares)

  // y [T, ...] of 4-byte elements, this rank's rows at their places; empty ones are left out.
  void AddRows(const ExecContext& ctx, const Tensor& y);
  // FP16 blocks (ops/activation_blocks.cuh) of D columns, a multiple of 64: `own` of the rank's rows alone, `all` of T.
  void AddBlocks(const uint8_t* own, uint8_t* all, int64_t num_rows, int64_t d);
};
void GatherShares(const ExecContext& ctx, const GatherSharesArgs& args);

// Sends this rank's rows beside what is queued before GatherShares is called with the same args, where there are links
// and so much to send that it pays: then `sent` is set. Every rank comes to the same. Until GatherShares `own` stays as
// it is; between the gathers of two of them and the next SendShares another exchange comes. Not recorded.
void SendShares(const ExecContext& ctx, GatherSharesArgs& args);
OpImplementations DescribeGatherShares(const ExecContext& ctx);

// 0 of what is sent: it is counted by itself.
int64_t ShareExchanges(const ExecContext& ctx, const GatherSharesArgs& args);

}  // namespace dsv4
