#include <algorithm>
#include <span>

#include "ops/simd.h"
#include "ops/sum_ranks/sum_ranks.h"

namespace dsv4::DSV4_ISA {

namespace {

constexpr int64_t kUnit = 64;  // floats: each cache line belongs to one rank

// Writes the sum of the partials' elements [begin, end) to the arrays `to`.
template <int Count>
void SumPart(float* const* parts, std::span<float* const> to, int64_t begin, int64_t end) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    Vec v[Count];
    for (int r = 0; r < Count; ++r) v[r] = Load(parts[r] + i);
    for (int width = 1; width < Count; width *= 2) {
      for (int r = 0; r < Count; r += 2 * width) v[r] = Add(v[r], v[r + width]);
    }
    for (float* y : to) Store(y + i, v[0]);
  }
  for (; i < end; ++i) {
    float v[Count];
    for (int r = 0; r < Count; ++r) v[r] = parts[r][i];
    for (int width = 1; width < Count; width *= 2) {
      for (int r = 0; r < Count; r += 2 * width) v[r] += v[r + width];
    }
    for (float* y : to) y[i] = v[0];
  }
}

}  // namespace

// Each rank adds its share of the elements for all ranks, in place; or its own rows for itself.
void SumRanksCpu(const ExecContext& ctx, const SumRanksArgs& a) {
  const RankView& ranks = *ctx.ranks;
  if (!ranks.exchange->Meet(ranks.rank, a.site, a.y.f32())) return;
  float* parts[kMaxRanks];
  for (int r = 0; r < ranks.count; ++r) parts[r] = static_cast<float*>(ranks.exchange->shown(r));
  RankShare share = ShareOf(a.y.num_elements(), ranks.rank, ranks.count, kUnit);
  std::span<float* const> to(parts, static_cast<size_t>(ranks.count));
  if (a.own_rows) {
    const int64_t width = a.y.num_elements() / a.y.dim(0);
    const RankShare rows = RowsOfRank(ctx, a.y.dim(0));
    share = {rows.begin * width, rows.end * width};
    to = to.subspan(static_cast<size_t>(ranks.rank), 1);
  }
  ParallelFor(ctx.pool, (share.end - share.begin + kUnit - 1) / kUnit, 64, [&](int64_t first, int64_t last, int) {
    const int64_t begin = share.begin + first * kUnit, end = std::min(share.end, share.begin + last * kUnit);
    switch (ranks.count) {
      case 2:
        return SumPart<2>(parts, to, begin, end);
      case 4:
        return SumPart<4>(parts, to, begin, end);
      default:
        return SumPart<8>(parts, to, begin, end);
    }
  });
  (void)ranks.exchange->Leave(ranks.rank, a.site);  // the exchange's status has the error
}

}  // namespace dsv4::DSV4_ISA
