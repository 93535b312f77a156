#include <algorithm>

#include "device/exchange.cuh"
#include "device/exchange_bulk.cuh"
#include "ops/sum_ranks/sum_ranks.h"

namespace dsv4 {

namespace {

template <int Count>
struct StoreSum {
  float* y;
  __device__ void operator()(int64_t i, const float (&part)[Count]) const { y[i] = RankTree<Count>(part); }
};

template <int Count>
void SumPieces(const ExecContext& ctx, const SumRanksArgs& a) {
  const int64_t n = a.y.num_elements(), room = ctx.ranks->memory.elements;
  for (int64_t done = 0, site = a.site; done < n; done += room, ++site) {
    float* y = a.y.f32() + done;
    ExchangeOnGpu<Count>(ctx, y, std::min(room, n - done), site, StoreSum<Count>{y});
  }
}

template <int Count>
void Sum(const ExecContext& ctx, const SumRanksArgs& a) {
  const int64_t n = a.y.num_elements();
  if (!SumsInBulk(ctx, n)) return SumPieces<Count>(ctx, a);
  const BulkShares shares = BulkShares::Of(n, Count, kBulkChunk, 1);
  const int64_t pieces = SumExchanges(ctx, n) / 2;
  ExchangeInBulk(ctx, ScatterSumKernel<Count>, a.y.f32(), shares, a.site, pieces);
  ExchangeInBulk(ctx, GatherSharesKernel<Count>, a.y.f32(), shares, a.site + pieces, pieces);
}

}  // namespace

void SumRanksCuda(const ExecContext& ctx, const SumRanksArgs& a) {
  switch (ctx.ranks->count) {
    case 2: return Sum<2>(ctx, a);
    case 4: return Sum<4>(ctx, a);
    default: return Sum<8>(ctx, a);
  }
}

}  // namespace dsv4
