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
  const SumShares shares = SharesOf(a);
  float* y = a.y.f32();
  BulkArrays arrays;
  arrays.count = 1;
  arrays.arrays[0] = BulkArray::Of(y, y, shares.units, Count, shares.grain, shares.unit);
  arrays.arrays[0].own = y + arrays.arrays[0].begin[ctx.ranks->rank];
  const int64_t pieces = SumExchanges(ctx, a) / (a.own_rows ? 1 : 2);
  ExchangeInBulk(ctx, ScatterSumKernel<Count>, arrays, a.site, pieces);
  if (!a.own_rows) ExchangeInBulk(ctx, GatherSharesKernel<Count>, arrays, a.site + pieces, pieces);
}

}  // namespace

void SumRanksCuda(const ExecContext& ctx, const SumRanksArgs& a) {
  switch (ctx.ranks->count) {
    case 2:
      return Sum<2>(ctx, a);
    case 4:
      return Sum<4>(ctx, a);
    default:
      return Sum<8>(ctx, a);
  }
}

}  // namespace dsv4
