#include "ops/gather_shares/gather_shares.h"

#include "ops/cuda_row.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

void GatherSharesRef(const ExecContext& ctx, const GatherSharesArgs& a);
void GatherSharesCuda(const ExecContext& ctx, const GatherSharesArgs& a);
void SendSharesCuda(const ExecContext& ctx, const GatherSharesArgs& a);

namespace {

constexpr Candidate<GatherSharesArgs> kGatherSharesCandidates[] = {
    DSV4_CUDA_ROW(GatherSharesCuda, "GatherSharesKernel"){"ref", SupportsCpu, GatherSharesRef},
};
// For early sends only.
constexpr Candidate<GatherSharesArgs> kSendSharesCandidates[] = {DSV4_CUDA_ROW(SendSharesCuda, "copies")};

// With fewer floats per rank, starting the copies costs the host more time than the copies take.
constexpr int64_t kLeastEarly = int64_t{1} << 20;

}  // namespace

void GatherSharesArgs::AddRows(const ExecContext& ctx, const Tensor& y) {
  if (!y || y.num_elements() == 0) return;
  DSV4_CHECK(num_values < kMost && SizeOf(y.dtype) == 4);
  const int64_t width = y.num_elements() / y.dim(0);
  auto* all = static_cast<float*>(y.data);
  values[static_cast<size_t>(num_values++)] = {.own = all + RowsOfRank(ctx, y.dim(0)).begin * width,
                                               .all = all,
                                               .units = y.dim(0),
                                               .grain = kShareRows,
                                               .unit = width};
}

void GatherSharesArgs::AddBlocks(const uint8_t* own, uint8_t* all, int64_t num_rows, int64_t d) {
  if (num_rows == 0) return;
  DSV4_CHECK(num_values < kMost && d % 64 == 0);
  values[static_cast<size_t>(num_values++)] = {.own = reinterpret_cast<const float*>(own),
                                               .all = reinterpret_cast<float*>(all),
                                               .units = CeilDiv(num_rows, kShareRows),
                                               .grain = 1,
                                               .unit = 256,
                                               .columns = d / 64};
}

namespace {

int64_t LongestOf(const SharedValue& v, int count) {
  return LongestShare(v.units, count, v.grain) * v.unit * v.columns;
}

// The chunks of the longest share; each value begins a new chunk.
int64_t ChunksOf(const GatherSharesArgs& a, int count) {
  int64_t chunks = 0;
  for (int i = 0; i < a.num_values; ++i) chunks += BulkChunks(LongestOf(a.values[static_cast<size_t>(i)], count));
  return chunks;
}

}  // namespace

// A collective of arrays carries chunks of all values together, up to the size of its memory. With copies each value
// has its own collectives.
int64_t ShareExchanges(const ExecContext& ctx, const GatherSharesArgs& a) {
  if (ctx.ranks == nullptr || ctx.ranks->count == 1 || a.num_values == 0 || a.sent) return 0;
  const RankView& ranks = *ctx.ranks;
  const ExchangeMemory& m = ranks.memory;
  if (m.elements == 0 && m.bulk_floats == 0) return 1;
  if (m.bulk_floats > 0) return BulkExchanges(m, ChunksOf(a, ranks.count));
  int64_t copies = 0;
  for (int i = 0; i < a.num_values; ++i)
    copies += CeilDiv(LongestOf(a.values[static_cast<size_t>(i)], ranks.count), m.elements);
  return copies;
}

void SendShares(const ExecContext& ctx, GatherSharesArgs& a) {
  if (ctx.ranks == nullptr || ctx.ranks->memory.early_floats == 0) return;
  const int64_t floats = ChunksOf(a, ctx.ranks->count) * kBulkChunk;
  if (floats < kLeastEarly || floats > ctx.ranks->memory.early_floats) return;
  RunOp("send_shares", kSendSharesCandidates, ctx, a);
  a.sent = true;
}

void GatherShares(const ExecContext& ctx, const GatherSharesArgs& a) {
  if (!a.sent && ShareExchanges(ctx, a) == 0) return;
  DSV4_CHECK(IsRankCount(ctx.ranks->count), ctx.ranks->count, " ranks");
  RunOp("gather_shares", kGatherSharesCandidates, ctx, a);
}

OpImplementations DescribeGatherShares(const ExecContext& ctx) {
  return DescribeOp("gather_shares", kGatherSharesCandidates, ctx);
}

}  // namespace dsv4
