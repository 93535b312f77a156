#include <algorithm>

#include "device/exchange_bulk.cuh"
#include "ops/gather_shares/gather_shares.h"

namespace dsv4 {

namespace {

// By events: pieces of what the memory for copies holds.
void CopyShares(const ExecContext& ctx, float* y, const BulkShares& shares, int64_t first_site, int64_t pieces) {
  const RankView& ranks = *ctx.ranks;
  const int64_t room = ranks.memory.elements;
  for (int64_t k = 0; k < pieces; ++k) {
    const auto size = [&](int r) { return std::clamp<int64_t>(shares.size(r) - k * room, 0, room); };
    const float* slots = CopyToRanks(ctx, y + shares.begin[ranks.rank] + k * room, size(ranks.rank), first_site + k);
    if (slots == nullptr) return;
    for (int p = 0; p < ranks.count; ++p) {
      if (p == ranks.rank || size(p) == 0) continue;
      const cudaError_t error = cudaMemcpyAsync(y + shares.begin[p] + k * room, slots + p * room,
                                                static_cast<size_t>(size(p)) * 4, cudaMemcpyDeviceToDevice,
                                                StreamOf(ctx));
      if (error != cudaSuccess) NoteCudaError(ctx, error, "copy of another rank's rows");
    }
  }
}

}  // namespace

void GatherSharesCuda(const ExecContext& ctx, const GatherSharesArgs& a) {
  const int64_t rows = a.y.dim(0), width = a.y.num_elements() / rows;
  const int count = ctx.ranks->count;
  DSV4_CHECK(width % 4 == 0, width, " columns");
  const BulkShares shares = BulkShares::Of(rows, count, kShareRows, width);
  const int64_t pieces = ShareExchanges(ctx, a.y);
  if (ctx.ranks->memory.bulk_floats == 0) return CopyShares(ctx, a.y.f32(), shares, a.site, pieces);
  const BulkKernel kernel = count == 2   ? GatherSharesKernel<2>
                            : count == 4 ? GatherSharesKernel<4>
                                         : GatherSharesKernel<8>;
  ExchangeInBulk(ctx, kernel, a.y.f32(), shares, a.site, pieces);
}

}  // namespace dsv4
